"""Sweeps over clusters: `splash sweep`, with an sbatch, an mpirun and an srun of a few lines on the PATH."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest

from conftest import Splash
from test_sweeps import values

# Runs what it is given, one task after another: an array at once, a job behind it when it is asked for.
SBATCH = """\
#!/bin/sh
for script; do :; done
echo "$@" >>sbatch.said
array=$(sed -n 's/^#SBATCH --array=1-//p' "$script")
for task in $(seq ${array:-0}); do
  SLURM_ARRAY_TASK_ID=$task sh "$script" >"$(sed -n 's/^#SBATCH --output=//p' "$script" | sed "s/%a/$task/")" 2>&1
done
[ -n "$array" ] || sh "$script" >"$(sed -n 's/^#SBATCH --output=//p' "$script")" 2>&1
echo "$((6 + $(wc -l <sbatch.said)));cluster"
"""
LAUNCHER = """\
#!/bin/sh
echo "$(basename "$0") $*" >>launched
[ "$1" = -n ] || exit 9
ranks=$2
shift 2
while [ "$1" != sh ]; do shift; done
for rank in $(seq 0 $((ranks - 1))); do {}=$rank "$@" || exit; done
"""
RANK = {"mpirun": "OMPI_COMM_WORLD_RANK", "mpiexec": "PMI_RANK", "srun": "SLURM_PROCID"}
COLUMNS = ("case_id", "alpha", "solver", "seed", "residual_max")


@pytest.fixture
def cluster(splash: Splash) -> Splash:
    """The program, with a scheduler on the PATH."""
    for name, text in {"sbatch": SBATCH, **{name: LAUNCHER.format(rank) for name, rank in RANK.items()}}.items():
        path = splash.write(f"bin/{name}", text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    without = {name: "" for name in (*RANK.values(), "PMIX_RANK", "SLURM_ARRAY_TASK_ID")}
    environment = splash.environment
    splash.environment = lambda **changes: environment(PATH=f"{splash.folder}/bin:{os.environ['PATH']}", **without) | changes
    splash.tiny()
    return splash


def whole(splash: Splash, *words: str) -> list[list]:
    done = splash("run", "tiny.toml", "--out", "whole.h5", *words)
    assert done.returncode == 0, done.stderr
    return values(splash, "whole.h5", *COLUMNS)


def test_an_array_of_slurm_is_written_submitted_and_merged(cluster: Splash) -> None:
    sweep = ("sweep", "tiny.toml", "--slurm", "--shards", "4", "--option=--time=1:00:00", "--set", "alpha=1.5,2")
    written = cluster(*sweep)
    assert written.returncode == 0 and written.stderr == "", written.stderr
    assert written.stdout.splitlines() == [
        "# 4 shards of 12 cases, in out/tiny.sweep",
        "job=$(sbatch --parsable out/tiny.sweep/shard.sh)",
        "sbatch --dependency=afterany:${job%%;*} out/tiny.sweep/merge.sh",
    ]
    script = (cluster.folder / "out/tiny.sweep/shard.sh").read_text().splitlines()
    assert script[:5] == [
        "#!/bin/sh",
        "#SBATCH --job-name=tiny",
        "#SBATCH --output=out/tiny.sweep/shard-%a.log",
        "#SBATCH --time=1:00:00",
        "#SBATCH --array=1-4",
    ]
    assert not (cluster.folder / "sbatch.said").exists()
    submitted = cluster(*sweep, "--submit")
    assert submitted.returncode == 0, submitted.stderr
    assert submitted.stdout == "job 7: 4 shards of 12 cases; job 8 then merges them into out/tiny.h5\n"
    assert "--dependency=afterany:7 out/tiny.sweep/merge.sh" in (cluster.folder / "sbatch.said").read_text()
    assert "12 cases of 4 reports, complete" in (cluster.folder / "out/tiny.sweep/merge.log").read_text()
    assert values(cluster, "out/tiny.h5", *COLUMNS) == whole(cluster, "--set", "alpha=1.5,2")


@pytest.mark.parametrize("launcher", RANK)
def test_processes_of_mpi_are_started_and_merged(cluster: Splash, launcher: str) -> None:
    sweep = ("sweep", "tiny.toml", "--mpi", "--shards", "3", "--out", "a b/sweep.h5", "--option=--quiet")
    sweep += () if launcher == "mpirun" else ("--launcher", launcher)
    written = cluster(*sweep)
    start = f"{launcher} -n 3 --quiet sh 'a b/sweep.sweep/shard.sh'"
    assert written.stdout.splitlines()[1:] == [start, "sh 'a b/sweep.sweep/merge.sh'"]
    done = cluster(*sweep, "--submit")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "a b/sweep.h5: merged of 3 shards\n"
    assert (cluster.folder / "launched").read_text() == start.replace("'", "") + "\n"
    assert values(cluster, "a b/sweep.h5", *COLUMNS) == whole(cluster)


def test_a_missing_shard_is_named_and_the_same_command_goes_on(cluster: Splash) -> None:
    sweep = ("sweep", "tiny.toml", "--slurm", "--shards", "3", "--submit")
    broken = cluster.folder / "bin/sbatch"
    broken.write_text(SBATCH.replace('SLURM_ARRAY_TASK_ID=$task sh', '[ $task = 2 ] || SLURM_ARRAY_TASK_ID=$task sh'))
    assert cluster(*sweep).returncode == 0
    told = (cluster.folder / "out/tiny.sweep/merge.log").read_text()
    assert told == "splash: of 3 shards these have no report: 2; start the sweep again, which goes on\n"
    assert not (cluster.folder / "out/tiny.h5").exists()
    broken.write_text(SBATCH)
    assert cluster(*sweep).returncode == 0
    assert "already holds all 6 cases" in (cluster.folder / "out/tiny.sweep/shard-1.log").read_text()
    assert "18 cases of 3 reports, complete" in (cluster.folder / "out/tiny.sweep/merge.log").read_text()


def test_a_claim_that_differs_is_no_failure_of_a_shard(cluster: Splash) -> None:
    expect = '\n[[expect]]\ncheck = "never"\nbelow = -1.0\ncolumn = "residual_max"\nstatistic = "max"\n'
    cluster.tiny(more=expect)
    done = cluster("sweep", "tiny.toml", "--mpi", "--shards", "2", "--submit")
    assert done.returncode == 0, done.stderr
    assert cluster.json("show", "out/tiny.h5", "--claims")["claims"][0]["verdict"] == "refuted"


def test_settings_and_the_folder_go_with_the_job(cluster: Splash) -> None:
    assert cluster("sweep", "tiny.toml", "--mpi", "--shards", "2", env={"SPLASH_PEER_PYTHON": "a'b"}).returncode == 0
    script = (cluster.folder / "out/tiny.sweep/shard.sh").read_text()
    assert f"cd {cluster.folder} || exit\n" in script and "export SPLASH_PEER_PYTHON='a'\\''b'\n" in script
    done = cluster("sweep", "tiny.toml", "--mpi", "--shards", "2", "--submit")
    assert done.returncode == 0
    moved = re.sub(r"^cd .*", "cd /nowhere || exit", script, flags=re.MULTILINE)
    (cluster.folder / "moved.sh").write_text(moved)
    assert os.system(f"cd {cluster.folder} && sh moved.sh 2>/dev/null") != 0  # no rank, and no such folder


def test_what_a_sweep_refuses(cluster: Splash) -> None:
    sweep = ("sweep", "tiny.toml")
    slurm = (*sweep, "--slurm", "--shards")
    assert "give --slurm or --mpi, one of them" in cluster.refused(*sweep, "--shards", "2")
    assert "give --slurm or --mpi, one of them" in cluster.refused(*slurm, "2", "--mpi")
    assert "--shards is 19; tiny.toml has 18 cases, so it must be from 1 to 18" in cluster.refused(*slurm, "19")
    assert "--shards is 0" in cluster.refused(*slurm, "0")
    assert "--shards" in cluster.refused(*sweep, "--slurm")
    assert "--launcher belongs to --mpi" in cluster.refused(*slurm, "2", "--launcher", "srun")
    assert "--launcher is 'qsub'; allowed are" in cluster.refused(*sweep, "--mpi", "--shards", "2", "--launcher", "qsub")
    assert "choose another --out" in cluster.refused(*slurm, "2", "--out", "a b.h5")
    assert "begin with -" in cluster.refused(*slurm, "2", "--option=time")
    assert "did you mean 'alpha'?" in cluster.refused(*slurm, "2", "--set", "alpa=1.5")
    assert "there is no experiment 'tine'" in cluster.refused("sweep", "tine", "--slurm", "--shards", "2")
    assert {path.name for path in cluster.folder.iterdir()} == {"bin", "tiny.toml"}


def test_a_scheduler_that_is_missing_or_fails(cluster: Splash) -> None:
    sweep = ("sweep", "tiny.toml", "--submit", "--shards", "2")
    (cluster.folder / "bin/sbatch").write_text("#!/bin/sh\nexit 3\n")
    assert "sbatch ended with exit code 3; finished cases are kept" in cluster.refused(*sweep, "--slurm")
    (cluster.folder / "bin/sbatch").write_text("#!/bin/sh\necho Submitted batch job\n")
    assert "did not tell the number of a job" in cluster.refused(*sweep, "--slurm")
    for name in ("sbatch", "mpirun"):
        (cluster.folder / "bin" / name).unlink()
    nowhere = {"PATH": str(cluster.folder / "bin") + ":/usr/bin:/bin"}
    if not any(Path(folder, "sbatch").exists() for folder in ("/usr/bin", "/bin")):
        assert "sbatch could not be started; --submit needs it on the PATH" in cluster.refused(*sweep, "--slurm", env=nowhere)
