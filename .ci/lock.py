"""Write locked/*.txt anew, one for each section of constraints.txt: its pins with the sha256 of each file they allow.

    .venv/bin/python .ci/lock.py

pip asks its index for the packages that constraints.txt names, and for no others. Allowed are wheels of CPython 3.11 to
3.13 on Linux and macOS, and sources where a package has no wheel for every machine.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version
from pip._internal.commands.install import InstallCommand
from pip._internal.index.collector import parse_links
from pip._internal.models.link import Link

ROOT = Path(__file__).parents[1]
FILES = {"make install": "install", "the other groups": "groups", "torch's own, with CUDA": "cuda"}  # section to file
PYTHONS = re.compile(r"py3|cp3(11|12|13)")
MACHINES = re.compile(r"any|manylinux\w+_(x86_64|aarch64)|macosx_\w+_(x86_64|arm64|universal2)")
TORCH_ON_CPUS = "torch==2.13.0+cpu"
CPU_FILES = """
6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64
84453b69508ec79902f899c5ed9495acb9e2bbe9fda5f1d5d6f19e3c3842e1a7 torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_aarch64
4ca4a9394b0c771238a4f73590fdbbc4debad85ed0fa63d026ae1b085da7d6e2 torch-2.13.0+cpu-cp312-cp312-manylinux_2_28_x86_64
6f307c2c32d764ffc6ff6893b801fad6d4752f3e67966cb8abf1843427c02604 torch-2.13.0+cpu-cp312-cp312-manylinux_2_28_aarch64
3fbf9c9d1f3c10c2d59d04aca426dee9ccc6ceb32d255c61e93acc3b4f75fae6 torch-2.13.0+cpu-cp313-cp313-manylinux_2_28_x86_64
0b8f7d0423027ae8b90c7977c627f3379f325363a08224dffad9b4b2d684a83d torch-2.13.0+cpu-cp313-cp313-manylinux_2_28_aarch64
"""  # from the index of PyTorch's CPU builds, which is not pip's; to be changed with the pin


def main() -> None:
    """Write the files."""
    (ROOT / "locked").mkdir(exist_ok=True)
    for section in (ROOT / "constraints.txt").read_text().split("\n\n# ")[1:]:
        title, *pins = section.strip().splitlines()
        lines = [f"# {title}: constraints.txt with hashes. Written by .ci/lock.py.", *map(locked, pins)]
        (ROOT / "locked" / f"{FILES[title]}.txt").write_text("\n".join(lines) + "\n")
    pin = with_hashes(f'{TORCH_ON_CPUS} ; sys_platform == "linux"', CPU_FILES.split()[::2])
    (ROOT / "locked/cpu.txt").write_text(f"# torch without CUDA. Written by .ci/lock.py.\n{pin}\n")


def locked(pin: str) -> str:
    """Return a pin with the hashes of its files."""
    requirement = Requirement(pin)
    name, version = canonicalize_name(requirement.name), next(iter(requirement.specifier)).version
    found = list(links(name))
    hashes = {link.hash for link in found if is_allowed(link.filename, version)}
    if not any(link.filename.endswith("-any.whl") and link.hash in hashes for link in found):
        hashes |= {link.hash for link in found if is_source(link.filename, version)}
    if not hashes:
        raise SystemExit(f"{pin}: the index has no file for it")
    return with_hashes(pin, hashes)


def with_hashes(pin: str, hashes: Iterable[str]) -> str:
    """Return a pin as pip reads it, with the files that it allows."""
    return " \\\n".join([pin, *(f"    --hash=sha256:{digest}" for digest in sorted(hashes))])


def links(name: str) -> Iterator[Link]:
    """Return the files that pip finds of a package, of every version."""
    command = InstallCommand("install", "")
    options, _ = command.parse_args([])
    collector = command._build_package_finder(options, command._build_session(options))._link_collector
    sources = collector.collect_sources(project_name=name, candidates_from_page=lambda link: ())
    for source in filter(None, sources.index_urls):
        if page := collector.fetch_response(source.link):
            yield from (link for link in parse_links(page) if link.hash_name == "sha256" and not link.is_yanked)


def is_allowed(file: str, version: str) -> bool:
    """Say whether a file is a wheel of a version, for a machine and a Python that are supported."""
    if not file.endswith(".whl") or version not in file:
        return False
    _, of, _, tags = parse_wheel_filename(file)
    return of == Version(version) and any(
        MACHINES.fullmatch(tag.platform) and (PYTHONS.fullmatch(tag.interpreter) or tag.abi == "abi3") for tag in tags
    )


def is_source(file: str, version: str) -> bool:
    """Say whether a file is the source of a version."""
    return file.endswith(f"-{version}.tar.gz")


if __name__ == "__main__":
    main()
