"""What all rooms and the nodes speak of; standard library only."""
