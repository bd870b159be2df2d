"""Imported by a worker process before its jobs: from then on it notes what it opens."""

import os

from tests.wire.reaching_out import note_openings_in

NOTED_IN = "TEST_OPENINGS_NOTED_IN"
"""The variable with the path of the file."""

if NOTED_IN in os.environ:
    note_openings_in(os.environ[NOTED_IN])
