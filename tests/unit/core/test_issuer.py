"""Where the keys of the issuer come from, how long they are kept, and what a flood or an outage does to them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from infra.local.processes import free_port
from tallymark.errors import Unavailable
from tallymark.runtime.issuer import KEPT_S, LOOK_AGAIN_S, RETRY_S, IssuerKeys, fetch
from tests.e2e.issuer import Issuer, jwk

ISSUER = "https://issuer.example/tenant/"
DISCOVERY = "https://issuer.example/tenant/.well-known/openid-configuration"


class Web:
    """What stands at which address (None: no answer), what happens before it answers, and which were asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.now_s = 100.0
        self.before: Callable[[], object] = lambda: None
        self.pages: dict[str, Any] = {
            DISCOVERY: {"issuer": ISSUER, "jwks_uri": "https://keys.example/all"},
            "https://keys.example/all": {"keys": [jwk("first")]},
        }
        self.keys = IssuerKeys(ISSUER, self.fetch, lambda: self.now_s)

    def fetch(self, address: str) -> bytes:
        self.before()
        self.asked.append(address)
        page = self.pages[address]
        if page is None:
            raise OSError("no answer")
        return json.dumps(page).encode()

    def publish(self, *names: str) -> None:
        self.pages["https://keys.example/all"] = {"keys": [jwk(name) for name in names]}

    def down(self) -> None:
        self.pages[DISCOVERY] = None

    def known(self, key_id: str | None) -> list[str | None]:
        return [key.key_id for key in self.keys.known(key_id)]

    @property
    def looks(self) -> int:
        return self.asked.count(DISCOVERY)


@pytest.fixture
def web() -> Web:
    return Web()


# --- keeping ----------------------------------------------------------------------------------------------------


def test_keys_are_fetched_where_the_issuer_says_and_kept_for_an_hour(web: Web) -> None:
    assert web.known("first") == ["first"]
    assert web.asked == [DISCOVERY, "https://keys.example/all"]
    web.publish("second")
    web.now_s += KEPT_S - 1
    assert web.known("first") == ["first"]
    assert web.looks == 1
    web.now_s += 1
    assert web.known("first") == ["second"], "a key that the issuer has taken back is good for an hour at most"


def test_a_key_that_is_not_known_yet_is_looked_for_at_once(web: Web) -> None:
    web.known("first")
    web.publish("first", "second")
    assert web.known("second") == ["first", "second"]
    assert web.looks == 2


def test_a_flood_of_unknown_keys_is_no_flood_at_the_issuer(web: Web) -> None:
    for n in range(1000):
        assert web.known(f"forged-{n}") == ["first"]
    assert web.looks == 2
    web.now_s += LOOK_AGAIN_S
    for n in range(1000):
        web.known(None if n % 2 else f"forged-{n}")
    assert web.looks == 3


def test_in_an_hour_of_flood_the_issuer_is_asked_every_30_seconds(web: Web) -> None:
    for _ in range(int(KEPT_S)):
        web.now_s += 1
        web.known("forged")
    assert web.looks <= KEPT_S / LOOK_AGAIN_S + 2


# --- an issuer that does not answer -----------------------------------------------------------------------------


def test_old_keys_serve_while_the_issuer_is_down(web: Web) -> None:
    web.known("first")
    web.down()
    web.now_s += 10 * KEPT_S
    for _ in range(100):
        assert web.known("first") == ["first"]
        assert web.known("unknown") == ["first"]
    assert web.looks == 2, "callers do not wait for it, each in turn"
    web.pages[DISCOVERY] = {"issuer": ISSUER, "jwks_uri": "https://keys.example/all"}
    web.publish("second")
    web.now_s += LOOK_AGAIN_S
    assert web.known("first") == ["second"]


def test_without_any_keys_it_is_unavailable_and_tried_again_soon(web: Web) -> None:
    page = web.pages[DISCOVERY]
    web.down()
    for _ in range(100):
        with pytest.raises(Unavailable):
            web.keys.known("first")
    assert web.looks == 1
    web.pages[DISCOVERY] = page
    web.now_s += RETRY_S
    assert web.known("first") == ["first"]


@pytest.mark.parametrize(
    ("address", "page"),
    [
        (DISCOVERY, []),
        (DISCOVERY, {}),
        (DISCOVERY, {"issuer": ISSUER}),
        (DISCOVERY, {"issuer": ISSUER, "jwks_uri": 7}),
        (DISCOVERY, {"issuer": ISSUER.rstrip("/"), "jwks_uri": "https://keys.example/all"}),
        (DISCOVERY, {"issuer": "https://other.example", "jwks_uri": "https://keys.example/all"}),
        (DISCOVERY, {"issuer": ISSUER, "jwks_uri": "http://keys.example/all"}),
        (DISCOVERY, {"issuer": ISSUER, "jwks_uri": "file:///etc/keys"}),
        (DISCOVERY, {"issuer": ISSUER, "jwks_uri": "//keys.example/all"}),
        ("https://keys.example/all", {}),
        ("https://keys.example/all", {"keys": []}),
        ("https://keys.example/all", {"keys": [{"kty": "oct", "kid": "first", "k": "AA"}]}),
    ],
    ids=str,
)
def test_what_is_not_the_issuers_is_no_source_of_keys(web: Web, address: str, page: Any) -> None:
    web.known("first")
    assert web.pages[address] is not None
    web.pages = {**web.pages, "http://keys.example/all": {"keys": [jwk("second")]}, address: page}
    web.now_s += KEPT_S
    assert web.known("first") == ["first"], "the keys from before stay"
    fresh = IssuerKeys(ISSUER, web.fetch, lambda: 0.0)
    with pytest.raises(Unavailable):
        fresh.known("first")


def test_an_issuer_on_this_machine_may_do_without_https() -> None:
    pages = {
        "http://127.0.0.1:1/.well-known/openid-configuration": {"issuer": "http://127.0.0.1:1", "jwks_uri": "http://k"},
        "http://k": {"keys": [jwk("first")]},
    }
    keys = IssuerKeys("http://127.0.0.1:1", lambda address: json.dumps(pages[address]).encode(), lambda: 0.0)
    assert len(keys.known("first")) == 1


# --- threads ----------------------------------------------------------------------------------------------------


def test_who_has_keys_does_not_wait_for_the_one_who_looks_for_newer_ones(web: Web) -> None:
    web.known("first")
    web.now_s += KEPT_S
    looking, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        looking.set()
        assert go_on.wait(30)

    web.before = wait
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(web.known, "first")
        assert looking.wait(30)
        assert web.known("first") == ["first"]
        assert not first.done()
        go_on.set()
        assert first.result(30) == ["first"]
    assert web.looks == 2


def test_of_many_first_callers_one_asks_the_issuer(web: Web) -> None:
    barrier = threading.Barrier(8)

    def call(_: int) -> list[str | None]:
        barrier.wait(30)
        return web.known("first")

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(call, range(8))) == [["first"]] * 8
    assert web.looks == 1


# --- over HTTP --------------------------------------------------------------------------------------------------


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer() as started:
        yield started


def test_keys_come_over_http(issuer: Issuer) -> None:
    keys = IssuerKeys(issuer.url, fetch, lambda: 0.0)
    assert [key.key_id for key in keys.known("first")] == ["first"]
    issuer.down = True
    with pytest.raises(ValueError, match="answers 500"):
        fetch(f"{issuer.url}/keys?a=b")


class Rude(BaseHTTPRequestHandler):
    """Redirects, sends too much, or speaks no HTTP."""

    def do_GET(self) -> None:
        if self.path == "/garbage":
            self.wfile.write(b"garbage\r\n\r\n")
            return
        self.send_response(302 if self.path == "/redirect" else 200)
        self.send_header("location", "/")
        self.end_headers()
        self.wfile.write(b"x" * (256 * 1024 + (self.path == "/large")))

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


@pytest.fixture
def rude() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Rude)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_256_kib_are_read_and_no_more(rude: str) -> None:
    assert len(fetch(rude)) == 256 * 1024
    with pytest.raises(ValueError, match="more than"):
        fetch(f"{rude}/large")


@pytest.mark.parametrize("path", ["/redirect", "/garbage"])
def test_a_redirect_is_not_followed_and_garbage_is_no_answer(rude: str, path: str) -> None:
    with pytest.raises(ValueError, match="answers"):
        fetch(rude + path)


@pytest.mark.parametrize("address", ["", "file:///etc/hosts", "ftp://a/b", "https://", "//a/b", "http://a:b/", "x"])
def test_what_is_no_address_of_the_web_is_not_fetched(address: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        fetch(address)


def test_where_nobody_listens_is_an_os_error() -> None:
    with pytest.raises(OSError, match=r".+"):
        fetch(f"http://127.0.0.1:{free_port()}/")
