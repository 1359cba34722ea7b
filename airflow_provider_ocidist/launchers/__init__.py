"""What starts the processes of one node; standard library only."""
