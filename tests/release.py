"""Build the packages, and try them as a user would: `make dist`.

python -m tests.release        # into dist/; needs the CLI in the cache, and a package index for what the packages need

Each package has an sdist, and a wheel built from it. In a new environment that has the wheels and nothing of this
repository, the programs of README.md run on the real CLI with a scripted model, the command answers, and pyright and
mypy find the types of a program. In another one the core stands alone, with the two packages that it needs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

from pilothouse.provision.artifacts import cache_root
from pilothouse_testing import ScriptedModel

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
ANSWER = "No bugs found."
# All of it is right but for the line of `wrong`.
TYPED_PROGRAM = """\
import pilothouse as ph
from pilothouse import sync


async def main() -> None:
    result = await ph.query("How many?", output_type=int)
    number: int = result.output
    text: str = sync.query("Hi").result().text
    wrong: str = result.output
    print(number, text, wrong)
"""
_PROGRAM = re.compile(r"```python no-run\n(.*?)```", re.DOTALL)


def run(*words: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None, status: int = 0) -> str:
    """Run a command; a status that is not the expected one ends everything with its output."""
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode != status:
        raise SystemExit(f"{' '.join(map(str, words))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def build_packages() -> int:
    """Build the sdist of each package, and the wheel from it; give the number of packages."""
    shutil.rmtree(DIST, ignore_errors=True)
    packages = sorted((ROOT / "packages").iterdir())
    for package in packages:
        run(sys.executable, "-m", "build", "--outdir", DIST, package)
        [wheel] = DIST.glob(f"{package.name.replace('-', '_')}-*.whl")
        names = set(zipfile.ZipFile(wheel).namelist())
        if not any(name.endswith("/licenses/LICENSE") for name in names):
            raise SystemExit(f"{wheel.name} lacks the licence")
        for path in (package / "src").rglob("*"):
            name = path.relative_to(package / "src").as_posix()
            if path.is_file() and "__pycache__" not in name and name not in names:
                raise SystemExit(f"{wheel.name} lacks {name}")
    run(sys.executable, "-m", "twine", "check", "--strict", *DIST.iterdir())
    return len(packages)


def make_environment(place: Path, *requirements: str) -> Path:
    """Make an environment with what a user installs; give its programs."""
    venv.create(place, with_pip=True)
    pip = (place / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "--quiet", "install")
    run(*pip, "--find-links", DIST, *requirements, cwd=place)
    return place / "bin"


def check_core(programs: Path) -> None:
    """Check what the core brings along when it is installed alone."""
    listed = run(programs / "python", "-m", "pip", "list", "--format=freeze").split()
    found = {line.partition("==")[0] for line in listed} - {"pip", "setuptools"}
    if (
        not {"anyio", "msgspec", "pilothouse"}
        <= found
        <= {"anyio", "idna", "msgspec", "pilothouse", "typing_extensions"}
    ):
        raise SystemExit(f"pilothouse alone installs {sorted(found)}")
    run(programs / "python", "-c", "import pilothouse; pilothouse.query")


def readme_programs() -> Iterator[str]:
    """The complete programs of README.md."""
    yield from _PROGRAM.findall((ROOT / "README.md").read_text("utf-8"))


def try_programs(programs: Path, place: Path) -> int:
    """Run the programs of README.md and the command, on the real CLI with a scripted model; give their number."""
    number = 0
    with ScriptedModel() as model:
        model.default = ANSWER
        env = {**model.env(), "PATH": f"{programs}:{os.environ['PATH']}", "PILOTHOUSE_CACHE": str(cache_root())}
        for number, program in enumerate(readme_programs(), 1):
            path = place / f"program_{number}.py"
            path.write_text(program, "utf-8")
            output = run(programs / "python", path, cwd=place, env=env)
            if ANSWER not in output:
                raise SystemExit(f"program {number} of README.md printed:\n{output}")
        if ANSWER not in run(programs / "pilothouse", "ask", "Find bugs", cwd=place, env=env):
            raise SystemExit("`pilothouse ask` gave another answer")
    return number


def check_types(programs: Path, place: Path) -> None:
    """Let pyright and mypy find the types of the wheel, and the one mistake in a program."""
    (place / "typed.py").write_text(TYPED_PROGRAM, "utf-8")
    line = TYPED_PROGRAM[: TYPED_PROGRAM.index("wrong")].count("\n") + 1
    for checker, flags in (("pyright", ["--pythonpath", programs / "python"]), ("mypy", ["--strict"])):
        output = run(programs / checker, *flags, "typed.py", cwd=place, status=1)
        if f"typed.py:{line}" not in output or len(re.findall(r"error:| - error", output)) != 1:
            raise SystemExit(f"{checker} has found other mistakes:\n{output}")


def main() -> None:
    """Build and try the packages."""
    packages = build_packages()
    with tempfile.TemporaryDirectory(prefix="pilothouse-release-") as there:
        place = Path(there)
        check_core(make_environment(place / "core", "pilothouse"))
        programs = make_environment(place / "environment", "pilothouse[cli,testing]", "mypy", "pyright[nodejs]")
        number = try_programs(programs, place)
        check_types(programs, place)
    print(f"{number} programs of README.md run with the wheels of {packages} packages; they are in dist/")


if __name__ == "__main__":
    main()
