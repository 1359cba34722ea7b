"""The program's processes: launch, supervise, end."""
