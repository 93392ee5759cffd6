"""Its being here puts `tests/` on sys.path, so that tests of every room can share their parts."""
