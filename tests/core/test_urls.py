"""A callback URL has one form, in which it names messages and is signed; what has no safe form is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2core.errors import InvalidName
from a2core.urls import Callback, InvalidUrl, callback, normalise_url, trigger_url

LOCAL = "http://localhost:8000/api/a2/scheduler"
VERCEL = {"VERCEL": "1", "VERCEL_ENV": "production", "VERCEL_PROJECT_PRODUCTION_URL": "app.example.com"}
PREVIEW = {"VERCEL": "1", "VERCEL_ENV": "preview", "VERCEL_BRANCH_URL": "app-git-x.vercel.app"}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://app.example.com/cb", "https://app.example.com/cb"),
        ("HTTPS://APP.Example.COM/X", "https://app.example.com/X"),
        ("https://app.example.com", "https://app.example.com/"),
        ("https://app.example.com?x", "https://app.example.com/?x"),
        ("https:app.example.com/cb", "https://app.example.com/cb"),
        ("https:////app.example.com/cb", "https://app.example.com/cb"),
        # ports
        ("https://h:443/", "https://h/"),
        ("http://h:00080/", "http://h/"),
        ("http://h:443/", "http://h:443/"),
        ("https://h:/", "https://h/"),
        ("https://h:0/", "https://h:0/"),
        ("https://h:65535/", "https://h:65535/"),
        # paths
        ("https://h//a//b", "https://h//a//b"),
        ("https://h/a/../b", "https://h/b"),
        ("https://h/../../b", "https://h/b"),
        ("https://h/a/./b/.", "https://h/a/b/"),
        ("https://h/a/..", "https://h/"),
        ("https://h/..", "https://h/"),
        ("https://h/a/%2E%2e/b", "https://h/b"),
        ("https://h/a/.../b", "https://h/a/.../b"),
        ("https://h/%zz%/%7E", "https://h/%zz%/%7E"),
        ("https://h/a\"b<c>d`e{f}g|h^i'[x]", "https://h/a%22b%3Cc%3Ed%60e%7Bf%7Dg|h^i'[x]"),
        # queries
        ("https://h/?a=%41&b=+", "https://h/?a=%41&b=+"),
        ("https://h/?'\"<>{}|^`/..", "https://h/?%27%22%3C%3E{}|^`/.."),
        ("https://h/??a", "https://h/??a"),
        # users
        ("https://u@h/", "https://u@h/"),
        ("https://us%40er:p:a@ss@h/", "https://us%40er:p%3Aa%40ss@h/"),
        ("https://:pw@h/", "https://:pw@h/"),
        ("https://u:@h/", "https://u@h/"),
        ("https://@h/", "https://h/"),
        ("https://:@h/", "https://h/"),
        # host names
        ("https://ex%61mple.com/", "https://example.com/"),
        ("https://a..b./", "https://a..b./"),
        ("https://-x-_!$&'()*+,;=~\"`{}/", "https://-x-_!$&'()*+,;=~\"`{}/"),
        ("https://XN--mnchen-3ya.example/", "https://xn--mnchen-3ya.example/"),
        ("https://xn--fa-hia.de/", "https://xn--fa-hia.de/"),
        # addresses
        ("http://127.1/", "http://127.0.0.1/"),
        ("http://0x7f.1/", "http://127.0.0.1/"),
        ("http://017700000001/", "http://127.0.0.1/"),
        ("http://2130706433/", "http://127.0.0.1/"),
        ("http://0x/", "http://0.0.0.0/"),
        ("http://1.2.3.4./", "http://1.2.3.4/"),
        ("http://1.2.65535/", "http://1.2.255.255/"),
        ("http://[0:0:0:0:0:0:0:1]/", "http://[::1]/"),
        ("http://[2001:DB8::1]:80/", "http://[2001:db8::1]/"),
        ("http://[::ffff:1.2.3.4]/", "http://[::ffff:102:304]/"),
        ("http://[1:0:0:2:0:0:0:3]/", "http://[1:0:0:2::3]/"),
        ("http://[1:0:0:2:0:0:3:4]/", "http://[1::2:0:0:3:4]/"),
        ("http://[1:2:3:4:5:6:7::]/", "http://[1:2:3:4:5:6:7:0]/"),
        ("http://[::]/", "http://[::]/"),
    ],
)
def test_a_url_has_one_form(url: str, expected: str) -> None:
    """Every spelling of a URL comes to one text, and that text is its own form."""
    assert expected == normalise_url(url)
    assert expected == normalise_url(expected)
    assert Callback(expected) == callback(url, PREVIEW)


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("https://h/a b", "percent-encode"),
        (" https://h/", "percent-encode"),
        ("https://h/\n", "percent-encode"),
        ("ht\ttps://h/", "percent-encode"),
        ("https://h/\x7f", "percent-encode"),
        ("https://h\\a", "percent-encode"),
        ("https://münchen.example/", "punycode"),
        ("https://h/\ud800", "percent-encode"),
        ("https://h/#", "drop it"),
        ("https://h/?x#f", "drop it"),
        ("https://h/?", "drop it"),
        ("https://h?", "drop it"),
    ],
    ids=ascii,
)
def test_what_could_not_verify_is_refused_with_advice(url: str, advice: str) -> None:
    """A URL that a provider would change, and so sign otherwise, is refused with the form to write."""
    with pytest.raises(InvalidUrl, match=advice) as refusal:
        normalise_url(url)
    assert "INVALID_URL" == refusal.value.code


@pytest.mark.parametrize(
    "url",
    [
        "",
        "null",
        "localhost",
        "/api",
        "//h/",
        "https//h/",
        "ftp://h/",
        "httpx://h/",
        "blob:https://h/",
        "app.example.com:443/cb",
        "https://",
        "https:///",
        "https://?x",
        "https://u@/",
        "https://:80/",
        "https://h:65536/",
        "https://h:-1/",
        "https://h:8a/",
        "https://h:" + "9" * 5_000 + "/",
        "https://a:b:80/",
        "https://a|b/",
        "https://a^b/",
        "https://a<b/",
        "https://a]b/",
        "https://%00/",
        "https://a%20b/",
        "https://a%2fb/",
        "https://a%zz/",
        "https://m%C3%BCnchen/",
        "https://xn--/",
        "https://xn--a/",
        "https://xn--abc-/",
        "https://xn--99999999/",
        "http://1.2.3.256/",
        "http://1.2.3.4.5/",
        "http://256.1/",
        "http://4294967296/",
        "http://09.1.1.1/",
        "http://1_0.1/",
        "http://+1.1/",
        "http://1..2/",
        "http://a.1/",
        "http://0x1_0.1/",
        "http://" + "1" * 5_000 + "/",
        "https://[::1/",
        "https://[::g]/",
        "https://[]/",
        "https://[1::2::3]/",
        "https://[::01.2.3.4]/",
        "https://[fe80::1%25lo]/",
        "https://[fe80::1%lo]/",
        "https://[::1]x/",
    ],
    ids=lambda url: url[:40],
)
def test_what_is_no_url_is_refused(url: str) -> None:
    """Only absolute http and https URLs with a host, and perhaps a port, can be called."""
    with pytest.raises(InvalidUrl, match="callback url: "):
        normalise_url(url)


@pytest.mark.parametrize("url", [5, True, b"https://h/", ["https://h/"]], ids=repr)
def test_a_url_is_text(url: object) -> None:
    """A value of another type is refused, not converted."""
    with pytest.raises(InvalidUrl, match="absolute http or https URL"):
        normalise_url(url)  # type: ignore[arg-type]


@given(st.text(alphabet="ab.%2e/:@?[]x0-19'\"{}|;=&#\\ é", max_size=16))
def test_no_text_raises_anything_else(rest: str) -> None:
    """Whatever is configured, it has a form that is its own form, or is refused."""
    try:
        url = normalise_url(f"https://{rest}")
    except InvalidUrl:
        return
    assert url == normalise_url(url)


def test_production_is_where_the_platform_says() -> None:
    """On Vercel, the production's own host is the callback's."""
    expected = Callback("https://app.example.com/api/a2/scheduler")
    assert expected == callback(None, VERCEL) == callback(None, {**VERCEL, "A2_ENV": "production"})


def test_a_preview_is_known_as_one() -> None:
    """On a Vercel preview, the branch's host is the callback's, and its tokens may be forwarded."""
    expected = Callback("https://app-git-x.vercel.app/api/a2/scheduler", is_preview=True)
    assert expected == callback(None, PREVIEW)
    assert not callback(expected.url, PREVIEW).is_preview


@pytest.mark.parametrize(
    "host",
    [
        None,
        "",
        "APP.example.com",
        "app.example.com:443",
        "app.example.com:",
        "app.example.com/",
        "app.example.com/x",
        "app.example.com?",
        "app.example.com#",
        "user@app.example.com",
        "https://app.example.com",
        "münchen.example",
        " app.example.com",
        "127.1",
        "1.2.3.4.",
        "[0:0::1]",
        "[::1]:80",
        "[::1",
        "ex%61mple.com",
        "%",
    ],
    ids=ascii,
)
@pytest.mark.parametrize("environment", [VERCEL, PREVIEW], ids=["production", "preview"])
def test_a_platforms_host_is_a_bare_name(environment: dict[str, str], host: str | None) -> None:
    """What the platform's variable holds must be a host name as it stands; the error names the variable."""
    *_, variable = environment
    rest = {name: value for name, value in environment.items() if name != variable}
    with pytest.raises(InvalidUrl, match=f"{variable}: expected a bare host name"):
        callback(None, rest if host is None else {**rest, variable: host})


@pytest.mark.parametrize("host", ["localhost", "[::1]", "127.0.0.1", "a..b", ".", "a_b.example.com"])
def test_any_normal_host_will_do(host: str) -> None:
    """A host name in its normal form is taken as it is."""
    environment = {**VERCEL, "VERCEL_PROJECT_PRODUCTION_URL": host}
    assert f"https://{host}/api/a2/scheduler" == callback(None, environment).url


@pytest.mark.parametrize("environment", [{}, {"VERCEL": "1", "VERCEL_ENV": "development"}], ids=["plain", "vercel"])
def test_production_elsewhere_needs_a_url(environment: dict[str, str]) -> None:
    """In production nothing is guessed."""
    with pytest.raises(InvalidUrl, match="production needs the callback's url"):
        callback(None, {**environment, "A2_ENV": "production"})


@pytest.mark.parametrize(
    ("environment", "url"),
    [
        ({}, LOCAL),
        ({"PORT": ""}, LOCAL),
        ({"A2_ENV": "Production"}, LOCAL),
        ({"VERCEL": "true", "VERCEL_ENV": "production"}, LOCAL),
        ({"VERCEL": "1"}, LOCAL),
        ({"PORT": "80"}, "http://localhost/api/a2/scheduler"),
        ({"PORT": "00443"}, "http://localhost:443/api/a2/scheduler"),
        ({"PORT": "0" * 5_000 + "1"}, "http://localhost:1/api/a2/scheduler"),
    ],
    ids=lambda part: str(part)[:40],
)
def test_development_is_on_this_machine(environment: dict[str, str], url: str) -> None:
    """Anywhere else the callback is local, which is known as development."""
    assert Callback(url, is_development=True) == callback(None, environment)
    assert "http://localhost:3000/api/a2/scheduler" == callback(None, {}, 3_000).url


@pytest.mark.parametrize("port", ["0", "65536", "-1", "+1", "1.0", "1e3", "0x1", " 80", "80\n", "٣", "²", "9" * 5_000])
def test_a_port_is_plain_digits(port: str) -> None:
    """A port is decimal digits from 1 to 65535; the error names the variable."""
    with pytest.raises(InvalidUrl, match="PORT: expected decimal digits"):
        callback(None, {"PORT": port})


@pytest.mark.parametrize(
    "url",
    [
        "https://user:hunter2@app.example.com/cb#top",
        "https://user:hunter2@app.example.com:99999/cb",
        "https://user:hunter2@app.example.com/a b",
        "ftp://hunter2@app.example.com/cb",
        "https:\\\\hunter2@app.example.com",
        "https://app.example.com/cb?token=hunter2#top",
        "https://app.example.com/cb?token=\nhunter2",
        "https://hunter2@[::g]/cb",
    ],
)
def test_a_refusal_shows_no_secret(url: str) -> None:
    """User info and query may be credentials: an error's text masks them, and still shows which URL it is about."""
    with pytest.raises(InvalidUrl) as refusal:
        normalise_url(url)
    assert "hunter2" not in str(refusal.value)
    assert "***" in str(refusal.value)


# ── where crons are triggered ────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("url", "name", "expected"),
    [
        ("https://h/api/a2/scheduler", "daily", "https://h/api/a2/cron/daily"),
        ("https://h/api/a2/scheduler?b=/x?y", "daily", "https://h/api/a2/cron/daily?b=/x?y"),
        ("https://h/", "daily", "https://h/cron/daily"),
        ("https://h/a/", "daily", "https://h/a/cron/daily"),
        ("https://u:p@h:81/a", "A-z_0.9~", "https://u:p@h:81/cron/A-z_0.9~"),
        ("https://h/a", "at noon", "https://h/cron/at%20noon"),
        ("https://h/a", "täglich", "https://h/cron/t%C3%A4glich"),
        ("https://h/a", "a/b?c#d%e+f&g", "https://h/cron/a%2Fb%3Fc%23d%25e%2Bf%26g"),
        ("https://h/a", "...", "https://h/cron/..."),
    ],
)
def test_a_cron_is_triggered_beside_the_callback(url: str, name: str, expected: str) -> None:
    """The name is one segment in the place of the callback's last one, and the query stays."""
    assert expected == trigger_url(Callback(url), name)


@given(st.text(min_size=1, max_size=50).filter(lambda name: name not in {".", ".."} and "\x00" not in name))
def test_a_triggers_url_is_in_its_normal_form(name: str) -> None:
    """What a provider signs for it is what we compare with."""
    url = trigger_url(Callback("https://h/a?b"), name)
    assert url == normalise_url(url)


@pytest.mark.parametrize("name", ["", ".", "..", "\ud800"], ids=ascii)
def test_a_name_that_is_no_segment_is_refused(name: str) -> None:
    with pytest.raises(InvalidName, match="cron"):
        trigger_url(Callback("https://h/a"), name)
