export type VNode = object | string | number | boolean | null | undefined | VNode[];
export function html(strings: TemplateStringsArray, ...values: unknown[]): any;
export function render(node: VNode, parent: Element): void;
export function h(type: unknown, props: object | null, ...children: unknown[]): any;
export class Component<P = {}, S = {}> {
  constructor(props: P);
  props: P;
  state: S;
  setState(change: Partial<S>): void;
  shouldComponentUpdate?(next: P): boolean;
  render(props: P, state: S): VNode;
}
export function useState<T>(first: T | (() => T)): [T, (next: T | ((before: T) => T)) => void];
export function useReducer<T, A>(reduce: (state: T, action: A) => T, first: T): [T, (action: A) => void];
export function useEffect(effect: () => void | (() => void), inputs?: readonly unknown[]): void;
export function useLayoutEffect(effect: () => void | (() => void), inputs?: readonly unknown[]): void;
export function useRef<T>(first: T): { current: T };
export function useMemo<T>(make: () => T, inputs: readonly unknown[]): T;
export function useCallback<F>(callback: F, inputs: readonly unknown[]): F;
