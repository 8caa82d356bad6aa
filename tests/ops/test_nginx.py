"""ops/nginx.conf: through nginx, clients see what the service responds."""

import asyncio
import os
import re
import shutil
import socket
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path

import pytest
from aiohttp import ClientSession
from conftest import MOANA, ROOT, Client
from support import until

NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}{os.pathsep}/usr/sbin")
MAIN = """
daemon off;
master_process off;
pid {folder}/pid;
error_log {folder}/error.log;
events {{}}
http {{
  access_log off;
  gzip on;
  gzip_types application/json;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  {servers}
}}
"""

pytestmark = pytest.mark.skipif(not NGINX, reason="nginx is not installed")


@pytest.fixture
async def proxied(client: Client, tmp_path: Path) -> AsyncIterator[ClientSession]:
    """Clients of an nginx that compresses everything else, without TLS."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    text = (ROOT / "ops" / "nginx.conf").read_text()
    text = re.sub(r"^ *ssl_.*\n", "", text, flags=re.MULTILINE)
    text = text.replace("listen 443 ssl http2;", f"listen 127.0.0.1:{port};")
    text = text.replace("server 127.0.0.1:8000;", f"server 127.0.0.1:{client.port};")
    main = tmp_path / "nginx.conf"
    main.write_text(MAIN.format(folder=tmp_path, servers=text))
    command = [str(NGINX), "-e", str(tmp_path / "error.log"), "-p", str(tmp_path), "-c", str(main)]
    process = await asyncio.create_subprocess_exec(*command, stderr=DEVNULL)
    try:
        await until(lambda: (tmp_path / "pid").exists() or process.returncode is not None)
        assert process.returncode is None, (tmp_path / "error.log").read_text()
        async with ClientSession(f"http://127.0.0.1:{port}") as session:
            yield session
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def test_entity_tags_stay_strong(proxied: ClientSession) -> None:
    """If it compressed movies, nginx would weaken their tags: If-Match never matches then."""
    created = await proxied.post("/v1/movies", json=MOANA)
    seen = await proxied.get(created.headers["Location"], headers={"Accept-Encoding": "gzip"})

    changed = await proxied.patch(
        created.headers["Location"],
        json={"title": "Vaiana"},
        headers={"If-Match": seen.headers["ETag"], "Accept-Encoding": "gzip"},
    )

    assert seen.headers["ETag"] == '"1-1"'
    assert changed.status == 200


async def test_the_service_refuses_large_bodies_itself(proxied: ClientSession) -> None:
    """Clients get a problem document instead of nginx's page."""
    refused = await proxied.post("/v1/movies", data=BytesIO(b" " * (2**20 + 1)))

    assert (refused.status, refused.content_type) == (400, "application/problem+json")
