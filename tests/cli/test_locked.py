"""What `make install` takes is all pinned by sha256, on each system and Python; the workflows by commit."""

import functools
import re
import tomllib
from importlib import metadata
from itertools import product
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = "distributed-training-workbench"
SYSTEMS = {"linux": "Linux", "darwin": "Darwin"}
requires = functools.cache(metadata.requires)
GROUPS = {"install": ("all",), "groups": ("all", "browser", "course", "dev", "etcd", "publish")}


@functools.cache
def pins(name: str) -> dict[str, Requirement]:
    """Return the pins of a file by package; each must have hashes."""
    by_package = {}
    for block in re.split(r"\n(?! )", (ROOT / "locked" / f"{name}.txt").read_text().strip())[1:]:
        pin, *hashes = block.replace("\\", "").splitlines()
        assert hashes and all(re.fullmatch(r"    --hash=sha256:[0-9a-f]{64} *", line) for line in hashes), pin
        by_package[canonicalize_name(Requirement(pin).name)] = Requirement(pin)
    return by_package


def test_the_locked_pins_are_those_of_the_constraints():
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    stated = {canonicalize_name(Requirement(line).name): Requirement(line) for line in lines}
    assert pins("install") | pins("groups") | pins("cuda") == stated
    (cpu,) = pins("cpu").values()
    assert str(cpu.specifier) == f"{stated['torch'].specifier}+cpu"


@pytest.mark.parametrize(("file", "system", "python"), [*product(GROUPS, SYSTEMS, ("3.11", "3.12", "3.13"))])
def test_all_that_a_system_and_a_python_need_is_locked(file, system, python):
    where = {"sys_platform": system, "platform_system": SYSTEMS[system], "os_name": "posix", "extra": ""}
    where |= {"python_version": python, "python_full_version": f"{python}.1", "platform_machine": "x86_64"}
    locked = pins("install") | pins("cuda") | (pins("groups") if file == "groups" else {})
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    waiting = [Requirement(need) for need in project["dependencies"]]
    waiting.append(Requirement(f"{PROJECT}[{','.join(GROUPS[file])}]"))
    seen = set()
    while waiting:
        need = waiting.pop()
        name = canonicalize_name(need.name)
        if (name, *sorted(need.extras)) in seen or not (need.marker is None or need.marker.evaluate(where)):
            continue
        seen.add((name, *sorted(need.extras)))
        if name == PROJECT:
            waiting += [Requirement(inner) for group in need.extras for inner in optional[group]]
            continue
        pin = locked[name]
        assert pin.marker is None or pin.marker.evaluate(where), name
        try:
            needs = [Requirement(text) for text in requires(name) or ()]
        except metadata.PackageNotFoundError:  # of another system or Python than this
            continue
        for inner in needs:
            for extra in ("", *need.extras):
                if inner.marker is None or inner.marker.evaluate(where | {"extra": extra}):
                    inner.marker = None
                    waiting.append(inner)
                    break


@pytest.mark.parametrize("name", ["site", "tests"])
def test_a_workflow_names_actions_by_commit_and_gives_each_job_its_own_permissions(name):
    text = (ROOT / f".github/workflows/{name}.yml").read_text()
    assert all(re.fullmatch(r"\S+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", used) for used in re.findall(r"uses: (.*)", text))
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {}
    reading = [
        job for job in workflow["jobs"].values() if any("checkout" in step.get("uses", "") for step in job["steps"])
    ]
    assert [job["permissions"] for job in reading] == [{"contents": "read"}]
    assert "extra" not in text.lower()  # one index for a package
