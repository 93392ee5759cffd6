"""The gate: whether a campaign shows the engine to be worse than another campaign did.

Two campaigns were measured on two days, so that what they differ by is the engine's doing only as
far as the day's is known (docs/gate.md). Rooms from below: `metrics`, `rule`, `between` (pure),
`nights` (a campaign as the gate reads it), `comparable`, `ledger` (`gate.json`), `compare`, `own`,
`junit`, `markdown`, `rerun`.
"""
