"""The engine: the only room that both decides and acts. `carry` is the life of a call; the other files serve it."""
