"""What the crash test waits for at most, and how much it looks at."""

from __future__ import annotations

# A schema file with its rows; a state that takes longer is better copied with --dsn.
SETUP_S_MAX = 300.0

# A staging database is copied once for every server at work; a larger one is better cut down first.
COPY_BYTES_MAX = 20 << 30
COPY_S_MAX = 3600.0

# A database, or a working folder, that is tested in memory; there are three copies of it at a time, and as many servers
# as jobs. A larger one lies in the temporary folder.
IN_MEMORY_BYTES_MAX = 64 << 20

# After its client is gone a backend works on to the end of its statement; batch statements may take long.
BACKENDS_S_MAX = 30.0

# A clean run may take this long unless told otherwise; each later run this many times what the clean one took.
CLEAN_S_MAX = 60.0
RUN_TIMES_CLEAN = 10
RUN_S_MIN = 15.0

# The probe only waits for the first knock; a runtime that starts slowly needs some seconds for it.
KNOCK_S_MAX = 30.0

# Runs after the faulted one, until the program says that all is well. A scheduler rarely gives more.
RERUNS = 2

# Of a statement that is met many times: the first ones, the last, and some between.
SAMPLE_PER_STATEMENT = 4

# Rows that are shown of a table that differs, and tables whose rows are fetched for one point.
ROWS_SHOWN_MAX = 12
TABLES_SHOWN_MAX = 12

# A value in a report; longer ones are cut.
VALUE_CHARACTERS_MAX = 160

# What a program said last, kept for the report.
OUTPUT_BYTES_MAX = 4_000

# Between two looks at whether a program has ended; nobody notices it.
MOMENT_S = 0.02

# A program with threads takes different ways; after so many runs without the point it is UNREACHED.
TRIES_TO_REACH = 3
