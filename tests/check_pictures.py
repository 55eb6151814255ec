# SPDX-License-Identifier: Apache-2.0
"""check_pictures.py ROOT: every SVG of the repository is XML, and its texts are within its page."""
import pathlib
import sys
import tempfile
import xml.etree.ElementTree as tree

SVG = "{http://www.w3.org/2000/svg}"


def faults(root):
    # Not a look into build, where other tests make and remove folders meanwhile.
    tops = [top for top in pathlib.Path(root).iterdir() if top.name not in ("build", ".git")]
    found, pictures = [], sorted(p for top in tops for p in ([top] if top.is_file() else top.rglob("*")) if p.suffix == ".svg")
    for path in pictures:
        try:
            picture = tree.parse(path).getroot()
        except tree.ParseError as error:
            found.append(f"{path}: {error}")
            continue
        if picture.tag != SVG + "svg":
            found.append(f"{path}: its root is {picture.tag}")
        left, top, width, height = (float(number) for number in picture.get("viewBox").split())
        for text in picture.iter(SVG + "text"):
            if "transform" in text.attrib:
                continue
            x, y = float(text.get("x")), float(text.get("y"))
            if not (left <= x <= left + width and top <= y <= top + height):
                found.append(f"{path}: '{text.text}' is at {x}, {y}, outside of the page")
    return found if pictures else [f"{root}: there is no picture"]


def self_test():
    page = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9">{}</svg>'
    for inside, fault in (('<rect rx="5"class="core"/>', "not well-formed"), ('<text x="1" y="10">a</text>', "outside of the page"),
                          ('<text x="1" y="9">a</text>', "")):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "picture.svg").write_text(page.format(inside))
            found = " ".join(faults(folder))
            if (fault not in found) or (not fault and found):
                return [f"{inside}: wanted '{fault}', found '{found}'"]
    return []


told = self_test() if sys.argv[1] == "--self-test" else faults(sys.argv[1])
print("\n".join(told))
sys.exit(1 if told else 0)
