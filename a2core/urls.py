"""Callback URLs: inferred from the platform or given, and normalised, since ids and signatures are made over them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import AddressValueError, IPv4Address, IPv6Address

from a2core.errors import A2Error, InvalidName, check_name

CALLBACK_PATH = "/api/a2/scheduler"
DEFAULT_PORT = 8000


class InvalidUrl(A2Error, ValueError):
    """A callback URL that could never be called or verified. The text says which form to write."""

    code = "INVALID_URL"


@dataclass(frozen=True, slots=True)
class Callback:
    """Where a provider delivers. `is_preview`: inferred for a Vercel preview; `is_development`: on this machine."""

    url: str = field(repr=False)  # its query may be a secret
    is_preview: bool = False
    is_development: bool = False


def callback(url: str | None, environment: Mapping[str, str], default_port: int = DEFAULT_PORT) -> Callback:
    """The callback URL: `url` if given, else what the environment says (wire.md 7).

    Raises InvalidUrl where a given one cannot be used, or none can be inferred; it names the variable to set.
    """
    if url is not None:
        return Callback(normalise_url(url))
    if environment.get("VERCEL") == "1":
        deployment = environment.get("VERCEL_ENV")
        if deployment == "production":
            return Callback(_inferred(environment, "VERCEL_PROJECT_PRODUCTION_URL"))
        if deployment == "preview":
            return Callback(_inferred(environment, "VERCEL_BRANCH_URL"), is_preview=True)
    if environment.get("A2_ENV") == "production":
        raise InvalidUrl("production needs the callback's url: nothing here says where a provider can reach this app")
    port = environment.get("PORT") or str(default_port)
    if re.fullmatch("[0-9]+", port) is None or not 1 <= _port_number(port) <= MAX_PORT:
        raise InvalidUrl(f"PORT: expected decimal digits from 1 to {MAX_PORT}, got {port!r}")
    return Callback(normalise_url(f"http://localhost:{port}{CALLBACK_PATH}"), is_development=True)


def trigger_url(where: Callback, name: str) -> str:
    """Where a provider triggers the cron `name`: the callback URL with `cron/{name}` for its last path segment.

    Its query stays, as it may be what lets a request pass. Raises InvalidName for what cannot be one segment.
    """
    if check_name("cron", name) in {".", ".."}:
        raise InvalidName(f"cron: {name!r} cannot be a part of a URL; give it another name")
    path, mark, query = where.url.partition("?")
    segment = "".join(chr(byte) if byte in _UNRESERVED else f"%{byte:02X}" for byte in name.encode())
    return f"{path.rpartition('/')[0]}/cron/{segment}{mark}{query}"


MAX_PORT = 65_535
IPV4_BYTES = 4
MAX_IPV4_DIGITS = 10
_DEFAULT_PORTS = {"http": 80, "https": 443}
_URL = re.compile(r"(?i:(https?)):/*([^/?]*)(/[^?]*)?(?:\?(.*))?")
_FORBIDDEN_IN_HOST = re.compile(r"[\x00-\x20#%/:<>?@\[\\\]^|\x7f]")
_PERCENT = re.compile("%([0-9A-Fa-f]{2})")
# RFC 3986 2.3: what stands for itself anywhere in a URL
_UNRESERVED = frozenset(b"-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
# the URL Standard's percent-encode sets, ASCII part
_PATH_SET = frozenset(' "<>`{}')
_QUERY_SET = frozenset(" \"<>'")
_USER_SET = _PATH_SET | frozenset("/:;=@[]^|")


def normalise_url(url: str) -> str:
    """An absolute http or https URL in the URL Standard's normal form (wire.md 7).

    Raises InvalidUrl for anything else, and for what could never verify or is ambiguous: a fragment, a bare trailing
    `?`, white space or control characters, a backslash, non-ASCII text.
    """
    if not (isinstance(url, str) and url):  # type: ignore[redundant-expr]
        raise InvalidUrl(f"callback url: expected an absolute http or https URL, got {url!r}")
    shown = _shown(url)
    if not url.isascii() or re.search(r"[\x00-\x20\x7f\\]", url):
        raise InvalidUrl(
            f"callback url: {shown} holds white space, control characters, a backslash or non-ASCII text; write the "
            "host in punycode and percent-encode the rest"
        )
    if "#" in url or url.endswith("?"):
        raise InvalidUrl(f"callback url: {shown} has a fragment or an empty query, which no provider sends; drop it")
    match = _URL.fullmatch(url)
    if match is None:
        raise InvalidUrl(f"callback url: expected http:// or https:// and a host, got {shown}")
    scheme, authority, path, query = match[1].lower(), match[2], match[3] or "/", match[4]
    user, at, host_port = authority.rpartition("@")
    host, port = _host_and_port(host_port, scheme, shown)
    text = f"{scheme}://{_user(user) if at else ''}{host}{port}{_path(path)}"
    return text if query is None else f"{text}?{_encoded(query, _QUERY_SET)}"


def _shown(url: str) -> str:
    """The URL for an error's text, without what may be secret: user info and query."""
    return repr(re.sub(r"(?<=[/\\])[^/\\]*@", "***@", re.sub(r"\?.+", "?***", url, flags=re.DOTALL)))


def _inferred(environment: Mapping[str, str], variable: str) -> str:
    host = environment.get(variable, "")
    try:
        url = normalise_url(f"https://{host}{CALLBACK_PATH}")
    except InvalidUrl:
        url = ""
    if url != f"https://{host}{CALLBACK_PATH}" or "@" in host or ":" in host.rpartition("]")[2] or "/" in host:
        raise InvalidUrl(f"{variable}: expected a bare host name in lower case, got {host!r}; or give the url itself")
    return url


def _host_and_port(text: str, scheme: str, shown: str) -> tuple[str, str]:
    match = re.fullmatch(r"(\[[^\]]*\]|[^:]*)(?::([0-9]*))?", text)
    if match is None or not match[1]:
        raise InvalidUrl(f"callback url: expected a host and perhaps a port, got {text!r} in {shown}")
    host, digits = match[1], match[2]
    port = _port_number(digits) if digits else _DEFAULT_PORTS[scheme]
    if port > MAX_PORT:
        raise InvalidUrl(f"callback url: expected a port up to {MAX_PORT}, got {digits!r} in {shown}")
    return _host(host, shown), "" if port == _DEFAULT_PORTS[scheme] else f":{port}"


def _port_number(digits: str) -> int:
    """The number, without reading thousands of digits."""
    significant = digits.lstrip("0")
    return int(significant or "0") if len(significant) <= len(str(MAX_PORT)) else MAX_PORT + 1


def _host(text: str, shown: str) -> str:
    if text.startswith("["):
        return f"[{_ipv6(text[1:-1], shown)}]"
    host = _PERCENT.sub(lambda match: chr(int(match[1], 16)), text).lower()
    if not host.isascii() or _FORBIDDEN_IN_HOST.search(host):
        raise InvalidUrl(f"callback url: {text!r} in {shown} is no host name")
    labels = host.removesuffix(".").split(".")
    if any(label.startswith("xn--") and not _is_punycode(label[4:]) for label in labels):
        raise InvalidUrl(f"callback url: {text!r} in {shown} has a label that is no punycode")
    if re.fullmatch("[0-9]+|0x[0-9a-f]*", labels[-1]):
        return _ipv4(labels, shown)
    return host


def _ipv4(parts: list[str], shown: str) -> str:
    """The numeric forms of an address: 1 to 4 numbers, decimal, octal or hexadecimal; the last one fills the rest."""
    numbers = [number for part in parts if (number := _number(part)) is not None]
    if len(numbers) == len(parts) <= IPV4_BYTES:
        *heads, last = numbers
        if all(head <= 0xFF for head in heads) and last < 256 ** (IPV4_BYTES - len(heads)):  # noqa: PLR2004 - a byte
            return str(IPv4Address(last + sum(head << 24 - 8 * place for place, head in enumerate(heads))))
    raise InvalidUrl(f"callback url: {'.'.join(parts)!r} in {shown} is no IPv4 address")


def _number(text: str) -> int | None:
    """A number as C writes it: `0x` for hexadecimal, `0` for octal."""
    if re.fullmatch("0x[0-9a-f]*", text):
        return int(text[2:] or "0", 16)
    if re.fullmatch("0[0-7]*", text):
        return int(text, 8)
    return int(text) if re.fullmatch(f"[1-9][0-9]{{0,{MAX_IPV4_DIGITS - 1}}}", text) else None


def _ipv6(text: str, shown: str) -> str:
    try:
        address = IPv6Address(text)
    except AddressValueError as error:
        raise InvalidUrl(f"callback url: {text!r} in {shown} is no IPv6 address") from error
    if address.scope_id is not None:
        raise InvalidUrl(f"callback url: {text!r} in {shown} has a zone, which no URL can carry")
    return _compressed(int(address))


def _compressed(address: int) -> str:
    """The URL Standard's text: the first longest run of two or more zero pieces becomes `::`."""
    pieces = [address >> 16 * place & 0xFFFF for place in range(7, -1, -1)]
    runs = [(start, end) for start in range(8) for end in range(start + 2, 9) if not any(pieces[start:end])]
    words = [f"{piece:x}" for piece in pieces]
    if not runs:
        return ":".join(words)
    start, end = max(runs, key=lambda run: (run[1] - run[0], -run[0]))
    return f"{':'.join(words[:start])}::{':'.join(words[end:])}"


def _is_punycode(label: str) -> bool:
    """Whether it stands for text that a label may hold, as far as that is known without Unicode's IDNA tables."""
    try:
        text = label.encode().decode("punycode")
        is_label = not text.isascii() and text.isprintable() and text == text.lower()
        return is_label and text.encode("punycode").decode() == label
    except UnicodeError:
        return False


def _user(text: str) -> str:
    name, colon, password = text.partition(":")
    name, password = _encoded(name, _USER_SET), _encoded(password, _USER_SET)
    if not name and not password:
        return ""
    return f"{name}{f':{password}' if colon and password else ''}@"


def _path(path: str) -> str:
    """Resolve dot segments, plain or percent-encoded, and encode what a path may not hold."""
    segments: list[str] = []
    *heads, last = path[1:].split("/")
    for segment in heads:
        match _dots(segment):
            case 1:
                continue
            case 2:
                del segments[-1:]
            case _:
                segments.append(segment)
    match _dots(last):
        case 1:
            segments.append("")
        case 2:
            segments[-1:] = [""]
        case _:
            segments.append(last)
    return "/" + "/".join(_encoded(segment, _PATH_SET) for segment in segments)


def _dots(segment: str) -> int:
    """1 for a single-dot segment, 2 for a double-dot one, else 0."""
    plain = segment.lower().replace("%2e", ".")
    return len(plain) if plain in {".", ".."} else 0


def _encoded(text: str, characters: frozenset[str]) -> str:
    return "".join(f"%{ord(char):02X}" if char in characters else char for char in text)
