"""Make the pictures of the README and of the site: a sweep in a terminal (SVG) and its report (PNG).

    python scripts/pictures.py [--scheduler NAME] [override ...]

Runs the sweep below for real, in a terminal of its own, in a new directory; then writes its report and has it
photographed by Chromium. Must not know: how tables are drawn.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
COLUMNS, ROWS = 100, 40
OVERRIDES = ["resources.procs_per_node=1,2", "optim.lr=0.02,0.05,0.1", "launch.best=max"]
CONTROL = re.compile(r"\r\n|\r|\n|\x1b\[(\d*)([A-HJKSTf])|\x1b\[\?\d+[hl]|\x1b\][^\x07]*\x07")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--scheduler", default="local")
    parser.add_argument("overrides", nargs="*", default=OVERRIDES)
    given = parser.parse_args()
    PICTURES.mkdir(exist_ok=True)
    project = Path(tempfile.gettempdir()) / "digits"  # its name is in the pictures
    project.mkdir()
    try:
        shutil.copytree(ROOT / "train_examples" / "digits_ddp", project, dirs_exist_ok=True)
        typed = ["python", "train.py", "-m", f"scheduler={given.scheduler}", *given.overrides]
        screen = in_terminal(typed, project)
        shown = " ".join(f"'{word}'" if " " in word else word for word in typed)
        picture([f"\x1b[32m$\x1b[0m {shown}", *screen], "python train.py -m", PICTURES / "sweep.svg")
        report(project, PICTURES / "report.png")
    finally:
        shutil.rmtree(project)


def in_terminal(argv: list[str], cwd: Path) -> list[str]:
    """Run a command in a terminal of its own; return the lines that are left on its screen, with their colours."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        argv, cwd=cwd, env=env, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    output = b""
    while True:
        try:
            output += os.read(ours, 65536)
        except OSError:  # the last process has closed the terminal
            break
    if process.wait() != 0:
        raise SystemExit(f"{argv} ended with {process.returncode}:\n{output.decode()}")
    return screen(output.decode(errors="replace"))


def screen(text: str) -> list[str]:
    """The lines that are left after cursor movements."""
    lines, row, start = [""], 0, 0
    for match in [*CONTROL.finditer(text), None]:
        lines[row] += text[start : match.start() if match else len(text)]
        if match is None:
            break
        start, (count, kind) = match.end(), match.groups()
        if match[0] == "\r":
            if kind is None and not text.startswith(("\x1b[2K", "\n"), start):
                lines[row] = ""
        elif match[0] in ("\n", "\r\n"):
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif kind == "A":
            row = max(0, row - int(count or 1))
        elif kind == "K":
            lines[row] = ""
        elif kind == "J":
            del lines[row + 1 :]
    while lines and not lines[-1].strip():
        lines.pop()
    return [*lines, ""]  # room for what is below the base line


def picture(lines: list[str], title: str, file: Path) -> None:
    """Write lines of a terminal as SVG, without fonts from elsewhere."""
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    for line in lines:
        console.print(Text.from_ansi(line), soft_wrap=False)
    svg = console.export_svg(title=title, theme=MONOKAI)
    file.write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.S).replace("Fira Code, monospace", "monospace"))


def report(project: Path, file: Path) -> None:
    """Photograph the report of the newest sweep in ``project``."""
    page = project / "report.html"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-m", "hpc_hydra.cli", "report", "-o", str(page)], cwd=project, env=env, check=True)
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("the picture of the report needs Chromium or Chrome")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=5000"]
    argv = [browser, *options, "--window-size=1100,1180", f"--screenshot={file}", page.as_uri()]
    subprocess.run(argv, check=True, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
