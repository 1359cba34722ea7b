"""The work directory as those who wait read and write it, for any backend; `model.work_dir` names its files."""
