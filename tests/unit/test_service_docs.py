"""The API pages of the service; tests/browser/test_docs_page.py shows them in a browser."""

from starlette.testclient import TestClient

from app.main import create_app
from app.settings import Settings
from tests.cases import cases


@cases("page", ["/docs", "/redoc", "/"])
def test_head_is_get_without_a_body(page: str) -> None:
    """As FastAPI's own pages answer it, which these replace."""
    client = TestClient(create_app(Settings()))
    head, get = client.head(page), client.get(page)
    assert (head.status_code, head.headers) == (200, get.headers)
    assert head.content == b"" != get.content
