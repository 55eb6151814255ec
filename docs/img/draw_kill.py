#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/img/kill.svg from docs/img/kill.json: a terminal in which a rank is killed and the job resumes.

    python3 docs/img/draw_kill.py --record build/release/bin    # runs it anew and writes kill.json, then draws
    python3 docs/img/draw_kill.py                               # draws

kill.json holds each line as a terminal got it, with its time in seconds; nothing is made up. In the picture pauses are
cut to MOST_PAUSE, and long lines end at the edge, but for those in colour, which are wrapped. The animation plays once and stays at its last frame, which is also
what a reader sees whose system asks for no motion. Colours follow the reader's light or dark theme.
"""

import argparse
import json
import os
import pathlib
import pty
import re
import select
import signal
import subprocess
import tempfile
import textwrap
import time
from xml.sax.saxutils import escape

FOLDER = pathlib.Path(__file__).resolve().parent
COLUMNS, ROWS, ROW, LETTER, EDGE = 104, 31, 17, 7.25, 14
MOST_PAUSE = 0.9
TRAINING = 'exec 02_char_gpt --steps 400 --eval-every 400 --batch 24 --embd 64 --layers 2 --device cpu "$@"'
SAVING = "lockstep run -n 2 ./train --snapshot-dir run --out killed.safetensors"
STYLE = f"""
    .page {{ fill: #ffffff; stroke: #d0d7de }} text {{ font: 12px ui-monospace, monospace; fill: #24292f; white-space: pre }}
    .typed {{ fill: #0969da; font-weight: bold }} .verdict {{ fill: #cf222e }} .good {{ fill: #1a7f37 }}
    @media (prefers-color-scheme: dark) {{
      .page {{ fill: #0d1117; stroke: #3d444d }} text {{ fill: #d1d7e0 }}
      .typed {{ fill: #58a6ff }} .verdict {{ fill: #ff7b72 }} .good {{ fill: #3fb950 }}
    }}
    .gone {{ opacity: 0 }}
    @media (prefers-reduced-motion: no-preference) {{
      .line {{ animation: come 1ms linear both }} .gone {{ animation: pass linear both }}
      .screen {{ animation: scroll step-end both }}
    }}
    @keyframes come {{ from {{ opacity: 0 }} to {{ opacity: 1 }} }}
    @keyframes pass {{ 0%, 99% {{ opacity: 1 }} 100% {{ opacity: 0 }} }}"""


class Recording:
    """The lines of a terminal, each with its time."""

    def __init__(self, folder, programs):
        self.began = time.monotonic()
        self.lines = []
        self.folder = folder
        self.environment = dict(os.environ, PATH=f"{programs}:{os.environ['PATH']}", LOCKSTEP_DEVICE="cpu",
                                COLUMNS=str(COLUMNS), TERM="dumb")

    def now(self):
        return round(time.monotonic() - self.began, 3)

    def say(self, text, kind):
        self.lines.append({"at": self.now(), "text": text, "kind": kind})

    def run(self, command, on_line=None):
        """Types `command`, and takes what it writes into a terminal until it ends."""
        self.say(f"$ {command}", "typed")
        main, other = pty.openpty()
        program = subprocess.Popen(["bash", "-c", command], cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
                                   stdout=other, stderr=other, start_new_session=True)
        os.close(other)
        rest = ""
        while True:
            if not select.select([main], [], [], 120)[0]:
                os.killpg(program.pid, signal.SIGKILL)
                raise SystemExit(f"{command}: nothing was written for 120 s")
            try:
                rest += os.read(main, 65536).decode(errors="replace")
            except OSError:  # the last writer has closed it
                break
            *whole, rest = re.split("[\r\n]+", rest)
            for text in whole:
                if text:
                    self.say(text, "")
                    if on_line:
                        on_line(text)
        os.close(main)
        return program.wait()


def record(programs):
    with tempfile.TemporaryDirectory() as folder:
        script = pathlib.Path(folder, "train")
        script.write_text(f"#!/bin/sh\n{TRAINING}\n")
        script.chmod(0o755)
        it = Recording(folder, programs)
        it.run("tail -n 1 train")
        if it.run("lockstep run -n 2 ./train --out undisturbed.safetensors 2>log") != 0:
            raise SystemExit("the undisturbed training failed")
        killed = []

        def kill(text):
            step = re.search(r"step (\d+)/", text)
            if killed or not step or int(step[1]) < 150:
                return
            ranks = subprocess.run(["pgrep", "-f", "02_char_gpt.*killed.safetensors"], capture_output=True, text=True)
            pids = [pid for pid in ranks.stdout.split() if b"RANK=1\0" in pathlib.Path("/proc", pid, "environ").read_bytes()]
            killed.append(pids[-1])
            it.say(f"$ kill -9 {killed[0]}    # rank 1, from another terminal", "typed")
            os.kill(int(killed[0]), signal.SIGKILL)

        if it.run(SAVING, kill) == 0 or not killed:
            raise SystemExit("no rank was killed")
        if it.run(SAVING) != 0:
            raise SystemExit("the job did not resume")
        it.run("sha256sum undisturbed.safetensors killed.safetensors")
    sums = {line["text"].split()[0] for line in it.lines[-2:]}
    if len(sums) != 1:
        raise SystemExit(f"the weights differ: {sums}")
    (FOLDER / "kill.json").write_text(json.dumps({"lines": it.lines}, indent=1) + "\n")


def paced(lines):
    """The lines with pauses cut, as (from, until or None, text, kind)."""
    shown, clock, before = [], 0.3, 0.0
    for line, following in zip(lines, lines[1:] + [None]):
        clock += min(line["at"] - before, MOST_PAUSE)
        before = line["at"]
        kind = line["kind"]
        if not kind and re.search(r"killed by signal|failed first|has died", line["text"]):
            kind = "verdict"
        elif not kind and re.search(r"is saved|resumes from|^[0-9a-f]{64} ", line["text"]):
            kind = "good"
        until = None
        if following and re.search(r"step \d+/\d+ \[", line["text"]):
            until = clock + min(following["at"] - before, MOST_PAUSE)
        shown.append((round(clock, 2), until, line["text"], kind))
    return shown, clock


def fitted(begin, until, text, kind):
    """The line, at the width of the screen."""
    if not kind:
        return [(begin, until, text if len(text) <= COLUMNS else text[:COLUMNS - 1] + "…", kind)]
    return [(begin, until, part, kind) for part in textwrap.wrap(text, COLUMNS, subsequent_indent="    ")]


def draw(lines):
    shown, end = paced(lines)
    total = round(end + 1, 2)
    rows, texts, scroll = 0, [], []
    for begin, until, text, kind in (row for line in shown for row in fitted(*line)):
        y = (rows + 1) * ROW
        style = f"animation-delay:{begin}s"
        names = ["line"] if until is None else ["gone"]
        if until is not None:
            style += f";animation-duration:{max(until - begin, 0.01):.2f}s"
        names += [kind] if kind else []
        texts.append(f'<text class="{" ".join(names)}" transform="translate({EDGE} {y})" style="{style}">{escape(text)}</text>')
        if until is None:
            rows += 1
        scroll.append((begin, max(0, rows + (until is not None) - ROWS)))
    frames = [f"{min(100 * at / total, 99.9):.2f}% {{ transform: translateY({-hidden * ROW}px) }}" for at, hidden in scroll]
    last = scroll[-1][1] * ROW
    width, height = COLUMNS * LETTER + 2 * EDGE, ROWS * ROW + 2 * EDGE
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img" '
        'aria-label="A terminal: rank 1 of a training is killed, is named, the same command resumes, and the weights are those of the undisturbed run">',
        f"<style>{STYLE}", f"    @keyframes scroll {{ 0% {{ transform: translateY(0px) }} {' '.join(frames)} "
        f"100% {{ transform: translateY({-last}px) }} }}", "</style>",
        f'<clipPath id="glass"><rect x="0" y="{EDGE / 2}" width="{width:.0f}" height="{height - EDGE}"/></clipPath>',
        f'<rect class="page" x="0.5" y="0.5" width="{width - 1:.0f}" height="{height - 1}" rx="8"/>',
        f'<g clip-path="url(#glass)"><g class="screen" style="transform:translateY({-last}px);animation-duration:{total}s">',
        *texts, "</g></g>", "</svg>", ""])


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--record", metavar="FOLDER", type=pathlib.Path, help="run the programs of this folder anew")
    given = arguments.parse_args()
    if given.record:
        record(given.record.resolve())
    picture = draw(json.loads((FOLDER / "kill.json").read_text())["lines"])
    (FOLDER / "kill.svg").write_text(picture)


if __name__ == "__main__":
    main()
