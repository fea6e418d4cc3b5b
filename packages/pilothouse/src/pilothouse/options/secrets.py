"""What is secret, and its removal from everything that may be printed or kept. Pure: knows names and shapes, no I/O.

Owns the one rule for repr, errors, logs, journals and cassettes. A secret is a value whose name says so (`DB_PASS`,
`--token`, `apiKeyHelper`), a value in `env` or `headers`, the password or a secret parameter of a URL, and text with
the shape of a well-known kind of key, and in a command line what certain programs take as a password (`curl -u`). A key
without a name or such a place, in an unknown shape, is not recognised.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, cast

from pilothouse.errors import LineDecodeError
from pilothouse.messages.json_lines import as_mapping, decode_line, encode_json

if TYPE_CHECKING:
    from pilothouse.options.renderer import Invocation


MASK = "[redacted]"
MIN_SECRET_CHARS = 6
"""Characters. Shorter values are hardly keys, and masking them would make ordinary text unreadable."""
SECRET_FIELDS = frozenset({"env", "headers"})
"""Fields of nested values that usually hold keys: all of their values are masked where they are shown."""
_SECRET_TABLES = frozenset({"ENV", "ENVIRONMENT", "ENV_VARS", "HEADERS", "HTTP_HEADERS", "ENVIRONMENT_VARIABLES"})
"""Further fields, in any spelling, that hold keys if their value is a table, or a list of `NAME=value`."""
_COMMAND_FIELDS = frozenset({"args", "command"})
"""Fields of nested values that hold a command line, whole or as its arguments."""
_MAX_DEPTH = 50
"""Levels of nested values. A deeper value is masked as a whole."""

# Patterns as text, which `re` compiles on first use, because most queries never need them.
_KEY_LIKE = (
    r"TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|PASSCODE|CREDENTIAL|COOKIE|BEARER|AUTHORIZATION|CUSTOM_HEADERS|WEBHOOK"
    r"|CONNECTION_?STRING|AUTH_CONFIG|APIKEY|MNEMONIC|SEED_?PHRASE|(^|_)(AUTH|PWD|DSN|PEM)$|_SK$|KEY$|PWD$|PW$"
    r"|(^|_)(PASS|JWT|CREDS?|KEYS?|SAS)(_|$)|(^|_)T?OTP(_SEED|_CODE|_URI)?$|(?<!BY)(?<!COM)PASS$|(?<!COM)PAT$"
)
_NOT_KEY_LIKE = r"^(OLD)?PWD$|_PATH$|_FILE$|_DIR$|_SOCK$|_TTL|_MS$"
_COUNT_LIKE = r"TOKENS|_MAX|^MAX_"
_PARAMETER_LIKE = r"(^|_)(SIG|SIGNATURE|CODE)$"
_ORDINARY_VALUES = frozenset({"disabled", "enabled", "default"})

# Well-known kinds of keys. Each pattern is stored under a text that all its keys contain, because searching for that
# text is much faster. The secret is the group, or else the whole match.
_SHAPES = {
    "sk-": r"(?<![A-Za-z0-9])sk-(?:ant-[\w-]{6,}|[A-Za-z0-9][\w-]{18,})",
    "gh": r"(?<![A-Za-z0-9])gh[opsur]_\w{10,}",
    "github_pat_": r"github_pat_\w{10,}",
    "glpat-": r"glpat-[\w-]{10,}",
    "xox": r"(?<![A-Za-z0-9])xox[a-z]-[\w-]{8,}",
    "xapp-": r"(?<![A-Za-z0-9])xapp-[\w-]{8,}",
    "AKIA": r"(?<![A-Za-z0-9])AKIA[A-Z0-9]{12,}",
    "ASIA": r"(?<![A-Za-z0-9])ASIA[A-Z0-9]{12,}",
    "AIza": r"AIza[\w-]{20,}",
    "ya29.": r"ya29\.[\w-]{10,}",
    "npm_": r"(?<![A-Za-z0-9])npm_[A-Za-z0-9]{20,}",
    "pypi-": r"pypi-[\w-]{20,}",
    "hf_": r"(?<![A-Za-z0-9])hf_[A-Za-z0-9]{16,}",
    "k_live_": r"(?<![A-Za-z0-9])[srp]k_live_[A-Za-z0-9]{10,}",
    "k_test_": r"(?<![A-Za-z0-9])[srp]k_test_[A-Za-z0-9]{10,}",
    "whsec_": r"(?<![A-Za-z0-9])whsec_[A-Za-z0-9+/]{16,}=*",
    "hvs.": r"(?<![A-Za-z0-9])hvs\.[\w-]{20,}",
    "gsk_": r"(?<![A-Za-z0-9])gsk_[A-Za-z0-9]{20,}",
    "xai-": r"(?<![A-Za-z0-9])xai-[A-Za-z0-9]{20,}",
    "dckr_pat_": r"(?<![A-Za-z0-9])dckr_pat_[\w-]{16,}",
    "SG.": r"(?<![A-Za-z0-9])SG\.[\w-]{10,}\.[\w-]{10,}",
    "eyJ": r"(?<![A-Za-z0-9])eyJ[\w-]{6,}\.[\w-]{6,}\.[\w-]*",
    "PRIVATE KEY-----": r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)",
    "earer ": r"[Bb]earer +((?=[^\s\"']*[0-9])[\w.~+/=-]{12,})",
    "asic ": r"(?i:authorization)[\\\"' \t]*[:=][\\\"' \t]*[Bb]asic +([\w+/=-]{4,})",
    "://": r"://[^\s/:@\"'<>\\]*:([^\s/\"'<>\\]+)@",
}
# In a command line: `--token x`, `--token=x`, `TOKEN=x`, `Password=x;`, `X-Api-Key: x` and `"token": "x"`, with or
# without quotes.
_NAME_IN_COMMAND = (
    r"(?<![\w.-])(?:(--?[A-Za-z][\w-]*)(?:[ \t]+|=)"
    r"|([A-Za-z_][\w.-]*)(?:=|\\?[\"']:[ \t]*(?=\\?[\"'])|:(?!//)[ \t]*(?:(?i:Bearer|Basic|Digest|Token)[ \t]+)?))"
)
# A reference to a variable is not a key.
_VALUE_IN_COMMAND = r"\\\"[^\"\\$]+\\\"|\"[^\"$]+\"|'[^'$]+'|(?!\\\")[^\s\"';&|,$-][^\s\"';&|,$]*"
# The words of a command line, and what separates commands.
_WORD_IN_COMMAND = r"(?:\"(?:[^\"\\]|\\.)*\"|'[^']*'|\\.|[^\s\"'\\;&|()`])+|[;&|()`\n]"
# What programs take as a password without a name for it, or as `user:password`: the option before it, and the option
# that begins the same word.
_USER_OPTIONS = (r"-[A-Za-z]*[uU]|--(?:proxy-)?user", r"-[uU]|--(?:proxy-)?user=")
_UNKNOWN = ""
_PASSWORD_OPTIONS = {
    "curl": _USER_OPTIONS,
    _UNKNOWN: _USER_OPTIONS,  # arguments whose program is not known
    "login": ("-p", "-p"),  # `docker login`
    "sshpass": ("-p", "-p"),
    **dict.fromkeys(("mysql", "mysqladmin", "mysqldump", "mariadb", "mariadb-admin", "mariadb-dump"), ("$.", "-p")),
    **dict.fromkeys(("redis-cli", "valkey-cli"), ("-a|--pass", "$.")),
    **dict.fromkeys(("ldapadd", "ldapdelete", "ldapmodify", "ldapsearch", "ldapwhoami"), ("-w", "-w")),
    **dict.fromkeys(("unzip", "zip"), ("-P", "-P")),
}
_LOGIN_PROGRAMS = frozenset({"az", "buildah", "docker", "helm", "nerdctl", "oc", "oras", "podman", "skopeo"})
_PROGRAMS = (_PASSWORD_OPTIONS.keys() | _LOGIN_PROGRAMS | {"rsync", "scp", "sftp", "ssh"}) - {"login", _UNKNOWN}
_SEPARATORS = frozenset(";&|()`\n")
_MENTIONS_PROGRAM = "|".join(filter(None, _PASSWORD_OPTIONS))
_PARAMETER = r"[?&]([\w.%\[\]-]+)=([^&\s\"'#<>\\]+)"


@lru_cache(maxsize=512)
def is_secret_name(name: str) -> bool:
    """Whether a name marks its value as a key: `DB_PASS`, `x-api-key`, `--client-secret`, `apiKeyHelper`."""
    name = _to_upper(name.lstrip("-"))
    return bool(re.search(_KEY_LIKE, name)) and not re.search(_NOT_KEY_LIKE, name)


# to collect


def secret_values(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the secret values of an environment, longest first.

    A value is secret if its variable has a name that is typical of keys. Of other values, those parts are secret that
    have the shape of a key, and the password in a URL, whatever the name.
    """
    found = _SecretCollector()
    for name, value in env.items():
        found.add_variable(name, value)
    return found.sorted()


def invocation_secrets(invocation: Invocation) -> tuple[str, ...]:
    """Return the secret values that a child gets: in its environment, its arguments, servers and settings."""
    found = _SecretCollector()
    for name, value in invocation.env.items():
        found.add_variable(name, value)
    found.walk([invocation.initialize, list(invocation.argv)])
    for file in invocation.files:
        if file.suffix == ".json":
            found.walk(file.content.decode("utf-8", "replace"))
    return found.sorted()


class _Masker:
    """Masks nested values and passes on the secrets: masking and collecting are the same traversal.

    `mask_field` returns what stands for a value in `env` or `headers`, whose name comes first.
    """

    def __init__(self, mask_field: Callable[[str, Any], Any], on_secret: Callable[[str], object]) -> None:
        self._mask_field = mask_field
        self._on_secret = on_secret

    def mask(self, value: Any, depth: int = 0) -> Any:
        if depth > _MAX_DEPTH:
            return MASK
        if isinstance(value, str):
            return self._mask_string(value, depth)
        if isinstance(value, dict):
            items = cast("dict[Any, Any]", value)
            command = items.get("command")
            program = _get_program(command) if isinstance(command, str) else _UNKNOWN
            return {key: self._mask_item(str(key), item, depth, program) for key, item in items.items()}
        if isinstance(value, list | tuple):
            masked = self._mask_list(cast("list[Any]", value), depth)
            return tuple(masked) if isinstance(value, tuple) else masked
        return value

    def _mask_item(self, key: str, item: Any, depth: int, program: str) -> Any:
        if key in SECRET_FIELDS:
            if isinstance(item, dict):
                fields = cast("dict[Any, Any]", item).items()
                return {name: self._mask_field(str(name), inner) for name, inner in fields}
            return self._mask_field("", item)
        if isinstance(item, dict | list) and _to_upper(key) in _SECRET_TABLES:
            return self._mask_table(cast("dict[Any, Any] | list[Any]", item), depth)
        if item and isinstance(item, str | list | tuple) and is_secret_name(key):
            return self._mask_named(cast("str | list[Any]", item), depth)
        masked = self.mask(item, depth + 1)
        if key in _COMMAND_FIELDS:
            return self._mask_command(masked, program if key == "args" else "sh")
        return masked

    def _mask_table(self, item: dict[Any, Any] | list[Any], depth: int) -> Any:
        """Mask the values of a table, or of a list of `NAME=value`."""
        if isinstance(item, dict):
            return {name: self._mask_field(str(name), inner) for name, inner in item.items()}
        masked: list[Any] = []
        for each in item:
            name, equals, value = each.partition("=") if isinstance(each, str) else ("", "", "")
            masked.append(f"{name}={self._mask_field(name, value)}" if equals else self.mask(each, depth + 1))
        return masked

    def _mask_named(self, value: str | list[Any], depth: int) -> Any:
        """Mask a text with the name of a key, or a list of them."""
        if not isinstance(value, str):
            return [
                self._mask_named(each, depth) if isinstance(each, str) else self.mask(each, depth + 1) for each in value
            ]
        self._on_secret(value)
        return MASK

    def _mask_command(self, value: Any, program: str = "sh") -> Any:
        """Mask what is named anywhere inside of a command line, or of its arguments, and what has a known place."""
        if isinstance(value, list | tuple):
            masked = [self._mask_command(argument) for argument in cast("list[Any]", value)]
            words = [argument if isinstance(argument, str) else "" for argument in masked]
            for at, start, end in _find_passwords(words, program):
                self._on_secret(words[at][start:end])
                masked[at] = f"{words[at][:start]}{MASK}{words[at][end:]}"
            return tuple(masked) if isinstance(value, tuple) else masked
        return self._mask_passwords(self._mask_names(value)) if isinstance(value, str) else value

    def _mask_names(self, text: str) -> str:
        parts, start = list[str](), 0
        for name in re.finditer(_NAME_IN_COMMAND, text):
            if name.start() < start or not is_secret_name(name[1] or name[2]) or text.startswith(MASK, name.end()):
                continue
            found = re.compile(_VALUE_IN_COMMAND).match(text, name.end())
            if found and not _is_ordinary(name[1] or name[2], found[0]):
                self._on_secret(found[0].strip("\\\"'"))
                parts += [text[start : found.start()], MASK]
                start = found.end()
        return "".join([*parts, text[start:]])

    def _mask_passwords(self, text: str) -> str:
        if not re.search(_MENTIONS_PROGRAM, text):
            return text
        words = list(re.finditer(_WORD_IN_COMMAND, text))
        parts, at = list[str](), 0
        for number, start, end in _find_passwords([word[0] for word in words], "sh"):
            start, end = words[number].start() + start, words[number].start() + end
            self._on_secret(text[start:end])
            parts += [text[at:start], MASK]
            at = end
        return "".join([*parts, text[at:]])

    def _mask_string(self, text: str, depth: int) -> str:
        if text.lstrip()[:1] in {"{", "["}:  # settings may be JSON text
            import json  # rarely needed

            try:
                inner = json.loads(text)
            except (ValueError, RecursionError):
                return mask_text(text, self._on_secret)
            masked = self.mask(inner, depth + 1)
            return text if masked == inner else json.dumps(masked)
        return mask_text(text, self._on_secret)

    def _mask_list(self, values: list[Any], depth: int) -> list[Any]:
        """Mask a list of arguments, where `--token x`, `--token=x`, `TOKEN=x` and `Authorization: x` have names."""
        masked: list[Any] = []
        named = False
        for value in values:
            if not isinstance(value, str):
                masked.append(self.mask(value, depth + 1))
                named = False
            elif named and value and not value.startswith("-"):
                self._on_secret(value)
                masked.append(MASK)
                named = False
            else:
                named = value.startswith("-") and is_secret_name(value)
                masked.append(self._mask_argument(value, depth))
        return masked

    def _mask_argument(self, text: str, depth: int) -> str:
        assigned = re.match(r"(-{0,2}[A-Za-z_][\w.-]*)(?:=(?=\S)|:\s*(?=(?:\w+\s+)?\S+$)(?!//))", text)
        if assigned is None:
            return self._mask_string(text, depth)
        value = text[assigned.end() :]
        if is_secret_name(assigned[1]) and not _is_ordinary(assigned[1], value):
            self._on_secret(value)
            return f"{assigned[0]}{MASK}"
        if depth > _MAX_DEPTH:
            return f"{assigned[0]}{MASK}"
        return f"{assigned[0]}{self._mask_argument(value, depth + 1)}"  # --header=X-Api-Key: x


def _to_upper(name: str) -> str:
    """Write a name as variables are written: `X-ApiKey` as `X_API_KEY`."""
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).replace("-", "_").replace(".", "_").upper()


def _get_program(word: str) -> str:
    return word.strip("\"'").rpartition("/")[2]


def _find_passwords(words: list[str], program: str) -> Iterator[tuple[int, int, int]]:
    """Find passwords by their place: yield the number of the word, and where the password begins and ends in it.

    `program` is the one that the words are arguments of.
    """
    is_value = False
    for at, word in enumerate(words):
        start, name = 0, _get_program(word)
        if is_value:
            is_value = False
        elif name in _PROGRAMS or (name == "login" and program in _LOGIN_PROGRAMS):
            program = name
            continue
        elif word in _SEPARATORS:
            program = "sh"
            continue
        else:
            before, within = _PASSWORD_OPTIONS.get(program, ("$.", "$."))
            is_value = re.fullmatch(before, word) is not None
            found = re.match(within, word)
            if is_value or found is None:
                continue
            start = found.end()
        start, end = _find_password(word, start, program)
        if start < end:
            yield at, start, end


def _find_password(word: str, start: int, program: str) -> tuple[int, int]:
    """Return where the password in the value of an option begins and ends; an empty range if there is none."""
    end = len(word)
    if word[start : start + 1] in ("'", '"') and word.endswith(word[start]) and end - start > 1:
        start, end = start + 1, end - 1
    if _PASSWORD_OPTIONS.get(program) == _USER_OPTIONS:
        colon = word.find(":", start, end)
        start = end if colon < 0 else colon + 1
    password = word[start:end]
    is_number = program == _UNKNOWN and (password.isdigit() or password.startswith(("/", ".")))  # or a path
    is_short = program == _UNKNOWN and len(password) < MIN_SECRET_CHARS
    return (end, end) if is_number or is_short or password.startswith(("$", MASK)) else (start, end)


class _SecretCollector:
    def __init__(self) -> None:
        self.values: set[str] = set()
        self._masker = _Masker(self._add_field, self.values.add)

    def sorted(self) -> tuple[str, ...]:
        # "Bearer <token>" may be printed without its first word.
        parts = {part for value in self.values for part in re.findall(r"^(?i:bearer|basic|token)\s+(\S+)$", value)}
        return _sort_longest_first(self.values | parts)

    def add_variable(self, name: str, value: str) -> None:
        if is_secret_name(name) and not _is_ordinary(name, value):
            self.values.add(value)
            if name.upper().endswith("HEADERS"):  # a header line may appear without its name
                self.values.update(line.partition(":")[2].strip() for line in value.splitlines())
        elif len(value) >= MIN_SECRET_CHARS:
            mask_text(value, self.values.add)

    def walk(self, value: Any) -> None:
        self._masker.mask(value)

    def _add_field(self, name: str, value: Any) -> Any:
        """Record a value in `env` or `headers`; only values with the name of a key are searched for elsewhere."""
        if isinstance(value, str):
            self.add_variable(name, value)
        return value


def _sort_longest_first(values: Iterable[str]) -> tuple[str, ...]:
    kept = (value for value in values if len(value) >= MIN_SECRET_CHARS)
    return tuple(sorted(kept, key=lambda value: (-len(value), value)))


def _is_ordinary(name: str, value: str) -> bool:
    # MAX_THINKING_TOKENS and similar values are limits.
    plain = name.lstrip("-").replace("-", "_").upper()
    return value.lower() in _ORDINARY_VALUES or (value.isdigit() and bool(re.search(_COUNT_LIKE, plain)))


# to mask


def mask(value: Any) -> Any:
    """Return a copy of a nested value with possible keys masked; names stay.

    Masked are all values in `env` and `headers`, values with a name that is typical of keys, values next to an
    argument with such a name, and keys inside text.

    Example:
        >>> mask({"args": ["--token", "abc", "--level=2"], "env": {"A": "b"}})
        {'args': ['--token', '[redacted]', '--level=2'], 'env': {'A': '[redacted]'}}
    """
    return _MASKER.mask(value)


_MASKER = _Masker(lambda _name, _value: MASK, lambda _secret: None)


def mask_text(text: str, on_secret: Callable[[str], object] | None = None) -> str:
    """Mask everything in a text with the shape of a key, and the passwords and secret parameters of URLs."""

    def hide(match: re.Match[str]) -> str:
        group = match.re.groups  # the last one
        if group == 2 and not _is_secret_parameter(match[1]):
            return match[0]
        if on_secret is not None:
            on_secret(match[group])
        start, end = match.span(group)
        return f"{match.string[match.start() : start]}{MASK}{match.string[end : match.end()]}"

    for marker, pattern in _SHAPES.items():
        if marker in text:
            text = re.sub(pattern, hide, text)
    return re.sub(_PARAMETER, hide, text) if "=" in text and "?" in text else text


def _is_secret_parameter(name: str) -> bool:
    return is_secret_name(name) or bool(re.search(_PARAMETER_LIKE, name.replace("-", "_").upper()))


class Redactor:
    """Replaces secrets in text: known values, in the forms in which they are printed, and shapes of keys.

    Values of several lines are searched for line by line, because text arrives in lines.
    """

    def __init__(self, values: Iterable[str]) -> None:
        lines = {line.strip() for value in values for line in value.splitlines()}
        self.values = _sort_longest_first(lines)
        kept = _sort_longest_first({form for line in self.values for form in _encode_forms(line)})
        self.longest = len(kept[0]) if kept else 0
        self._pattern = re.compile("|".join(map(re.escape, kept))) if kept else None

    def redact(self, text: str) -> str:
        """Return `text` with every secret replaced by `MASK`."""
        return mask_text(self._pattern.sub(MASK, text) if self._pattern else text)


def _encode_forms(line: str) -> Iterator[str]:
    """Return a value as it is, inside a JSON string, in a URL, and in base64."""
    import base64  # needed only when the child writes to standard error
    import json
    from urllib.parse import quote

    yield line
    yield json.dumps(line)[1:-1]
    yield quote(line, safe="", errors="replace")
    data = line.encode("utf-8", "surrogatepass")
    whole = data[: len(data) // 3 * 3]  # text after the value would change the last letters
    if len(whole) >= MIN_SECRET_CHARS:
        yield base64.b64encode(whole).decode()
        yield base64.urlsafe_b64encode(whole).decode()


_MARKS: Final = (b'"control_response"', b'"sources"')


def hide_settings(line: bytes) -> bytes:
    """Return a line of output as it may be stored: with possible keys masked, if it is the answer to `get_settings`.

    That answer holds the variables and keys of the user's files. A client asks for it whenever it sends settings, so it
    is in recordings and journals that nobody looks through.

    Args:
        line: without the newline. An answer that is cut off becomes empty.
    """
    if not all(mark in line for mark in _MARKS):
        return line
    try:
        frame: Any = decode_line(line)
    except LineDecodeError:
        return b""
    response: Any = as_mapping(frame).get("response")
    answer = as_mapping(as_mapping(response).get("response"))
    if "sources" not in answer:
        return line
    response["response"] = mask(answer)
    return encode_json(frame)
