"""Back-ends that watch a run: the engine knows them only as a protocol, and none of them can break a job."""
