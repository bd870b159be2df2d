"""The page of a calibration as a browser without a network shows it."""

import os
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from blis_sim.cli.main import run
from tests.calibrate.test_presentation import files, recorded, simulated
from tests.patience import PATIENCE_S

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
OFFLINE = ("--host-resolver-rules=MAP * ~NOTFOUND", "--proxy-server=127.0.0.1:9")
REAL, SIMULATED = (0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)


def browser() -> str:
    """The path of a browser; skips without one."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"none of {', '.join(BROWSERS)} is installed")
    return found


def shown(page: Path, *arguments: str) -> str:
    """Return the text of the page as the browser prints it."""
    profile = f"--user-data-dir={page.parent / 'profile'}"
    command = [browser(), "--headless", "--no-sandbox", "--disable-gpu", profile, *OFFLINE, *arguments, page.as_uri()]
    with TemporaryDirectory() as left_behind:
        environment = {**os.environ, "TMPDIR": left_behind}
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_S, env=environment)
    return done.stdout


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    browser()
    folder = tmp_path_factory.mktemp("page")
    arguments = ["--sim-results", str(simulated(folder)), "--html", str(folder / "out.html")]
    assert run(["calibrate", str(files(folder, recorded())), *arguments]) == 0
    return folder / "out.html"


@pytest.mark.slow
def test_text_and_tables_are_there(page: Path) -> None:
    dom = shown(page, "--dump-dom")
    assert "TTFT is predicted within 10.0% per request" in dom
    assert dom.count("<table>") >= 4
    assert dom.count("<img") == 18


@pytest.mark.slow
def test_pictures_are_drawn(page: Path) -> None:
    from matplotlib.image import imread

    screenshot = page.with_suffix(".png")
    shown(page, f"--screenshot={screenshot}", "--window-size=1200,4200", "--hide-scrollbars")
    pixels = np.round(imread(screenshot)[..., :3] * 255).astype(int)
    for colour in (REAL, SIMULATED):
        assert (np.abs(pixels - colour).max(axis=2) <= 8).sum() > 200


@pytest.mark.slow
def test_on_a_phone_nothing_is_wider_than_the_screen(page: Path) -> None:
    wide = "<script>document.title = document.documentElement.scrollWidth > innerWidth ? 'wide' : 'fits'</script>"
    phone = page.with_name("phone.html")
    phone.write_text(page.read_text(encoding="utf-8").replace("</body>", f"{wide}</body>"), encoding="utf-8")
    assert "<title>fits</title>" in shown(phone, "--dump-dom", "--window-size=500,900")
