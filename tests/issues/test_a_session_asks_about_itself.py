"""The session of a run with NaN was told HEALTHY, because another job had begun a run of the same name since."""

from __future__ import annotations

from tests.e2e.conftest import Job
from tests.evaluate.daemon_process import Daemon


def test_another_job_of_the_same_name_answers_for_itself_only() -> None:
    with Daemon() as daemon:
        faulty = Job(daemon, "--steps", "100", "--nan-at", "60", "--hang-at", "61", "--run", "same")
        faulty.wait_step(61)
        later = Job(daemon, "--steps", "80", "--run", "same", "--diagnose")
        code, output, errors = later.finish()
        assert code == 0, output + errors
        assert "Verdict  HEALTHY  run same#2" in output
        faulty.process.kill()
        faulty.process.wait()

        earlier = Job(daemon, "--steps", "100", "--nan-at", "60", "--sleep", "0.05", "--run", "two", "--diagnose")
        earlier.wait_step(5)
        Job(daemon, "--steps", "80", "--run", "two").done()
        code, output, errors = earlier.finish()
        assert code == 0, output + errors
        assert "Verdict  FAULT  run two," in output, "the plain name means two#2 by now"
