"""How small an effect this device can show, and in what time: `python -m harness power`.

Reads a campaign's directory, writes nothing; simulates in processes of its own.
"""
