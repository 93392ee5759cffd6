"""Several campaigns that one command line asks for, one after the other: multirun and the nightly.

`combinations` and `nightly` say which campaigns (from overrides and configuration), `state` is what
a sweep is on disk and what follows from it, `words` shows it. `runner` alone runs anything: every
campaign by the same `harness.campaign` course as one that stands alone.
"""
