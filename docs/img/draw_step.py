#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/img/step.svg from docs/img/step.json: one training step on two ranks, as it was measured.

    python3 docs/img/draw_step.py

The numbers are those that benchmarks/step_timeline prints, one line for each rank; to measure anew put its lines into
"ranks" of step.json, without the prefix of `lockstep run`. Text stays text in the picture, and its colours follow the
reader's light or dark theme.
"""

import json
import pathlib
from xml.sax.saxutils import escape

FOLDER = pathlib.Path(__file__).resolve().parent
WIDTH, LEFT, RIGHT = 960, 92, 24
TOP, ROW, GAP, BAR = 56, 17, 4, 26
STYLE = """
    .page { fill: #ffffff } text { font: 12px sans-serif; fill: #24292f } .small { font-size: 11px; fill: #57606a }
    .title { font-size: 15px; font-weight: bold } .inside { fill: #ffffff } .grid { stroke: #d0d7de }
    .forward { fill: #6e7781 } .backward { fill: #0969da } .wait { fill: #cf222e } .optimizer { fill: #1a7f37 }
    .bucket { fill: #bf8700 } .ready { stroke: #24292f; stroke-width: 2 }
    @media (prefers-color-scheme: dark) {
      .page { fill: #0d1117 } text { fill: #e6edf3 } .small { fill: #9198a1 } .inside { fill: #ffffff }
      .grid { stroke: #3d444d } .ready { stroke: #e6edf3 }
    }"""


class Picture:
    def __init__(self, end):
        self.scale = (WIDTH - LEFT - RIGHT) / end
        self.parts = []

    def x(self, time):
        return LEFT + time * self.scale

    def text(self, x, y, text, kind="", anchor="start"):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>')

    def bar(self, y, height, begin, end, kind, tip):
        x, width = self.x(begin), max(1.0, (end - begin) * self.scale)
        self.parts.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}" class="{kind}">'
                          f'<title>{escape(tip)}</title></rect>')

    def line(self, x, y1, y2, kind):
        self.parts.append(f'<line x1="{x:.1f}" y1="{y1}" x2="{x:.1f}" y2="{y2}" class="{kind}"/>')


def draw_rank(picture, rank, top):
    """One rank's computing, and a row for each bucket; returns the y below them."""
    phases = [("forward", "forward", "backward"), ("backward", "backward", "last_gradient"),
              ("wait", "last_gradient", "optimizer"), ("optimizer", "optimizer", "end")]
    picture.text(12, top + BAR / 2 + 4, f"rank {rank['rank']}")
    for name, begin, end in phases:
        length = rank[end] - rank[begin]
        picture.bar(top, BAR, rank[begin], rank[end], name, f"{name}: {length / 1000:.2f} ms")
        middle = picture.x((rank[begin] + rank[end]) / 2)
        for label in (f"{name} {length / 1000:.2f} ms", name):
            if length * picture.scale > 8 * len(label):
                picture.text(middle, top + BAR / 2 + 4, label, "inside", "middle")
                break
    y = top + BAR + GAP
    for index, bucket in enumerate(rank["buckets"]):
        mib = bucket["bytes"] / 2**20
        picture.text(LEFT - 8, y + ROW - 5, f"bucket {index}", "small", "end")
        picture.bar(y + 2, ROW - 4, bucket["launched"], bucket["finished"], "bucket",
                    f"all-reduce of {mib:.1f} MiB: {(bucket['finished'] - bucket['launched']) / 1000:.2f} ms")
        picture.line(picture.x(bucket["ready"]), y, y + ROW, "ready")
        label = f"{mib:.1f} MiB"
        if picture.x(bucket["finished"]) < WIDTH - RIGHT - 130:
            picture.text(picture.x(bucket["finished"]) + 6, y + ROW - 5, label, "small")
        else:
            picture.text(picture.x(bucket["ready"]) - 6, y + ROW - 5, label, "small", "end")
        y += ROW
    picture.text(LEFT, y + 14, f"waited after backward {rank['waited']:.0f} µs; communication done during backward "
                 f"{rank['hidden']:.0f} µs", "small")
    return y + 34


def draw(data):
    end = max(rank["end"] for rank in data["ranks"])
    picture = Picture(end)
    y = TOP
    for rank in data["ranks"]:
        y = draw_rank(picture, rank, y)
    grid = []
    for ms in range(int(end / 1000) + 1):
        x = picture.x(ms * 1000)
        grid.append(f'<line x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{y - 12}" class="grid"/>')
        picture.text(x, TOP - 14, f"{ms} ms", "small", "middle")
    legend = y + 4
    for i, (kind, label) in enumerate([("backward", "computing"), ("bucket", "all-reduce of a bucket"),
                                       ("wait", "waiting for the last bucket")]):
        x = LEFT + i * 210
        picture.parts.append(f'<rect x="{x}" y="{legend}" width="14" height="12" class="{kind}"/>')
        picture.text(x + 20, legend + 10, label, "small")
    x = LEFT + 3 * 210
    picture.line(x + 6, legend - 2, legend + 14, "ready")
    picture.text(x + 20, legend + 10, "the bucket's last gradient is ready", "small")
    picture.text(12, legend + 34, f"{data['model']}. {data['taken'].split(',')[0]}.", "small")
    picture.text(12, 22, "One step on two ranks: buckets are reduced while backward still computes", "title")
    height = legend + 46
    body = "\n  ".join(grid + picture.parts)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
            f'role="img" aria-label="Timeline of one training step on two ranks">\n  <style>{STYLE}\n  </style>\n'
            f'  <rect width="{WIDTH}" height="{height}" class="page"/>\n  {body}\n</svg>\n')


if __name__ == "__main__":
    target = FOLDER / "step.svg"
    target.write_text(draw(json.loads((FOLDER / "step.json").read_text())))
    print(f"wrote {target}")
