"""The work directory as the waiting side reads and writes it, for any backend; `model.work_dir` names its files."""
