"""The device a cell runs on: host half of the launcher, description of the machine."""
