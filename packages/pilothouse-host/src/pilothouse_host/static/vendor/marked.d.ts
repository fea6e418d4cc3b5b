export class Marked {
  constructor(...extensions: object[]);
  parse(text: string, options?: object): string;
}
