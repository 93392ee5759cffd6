"""What a device can and cannot tell, from what was seen of it: `python -m harness doctor`.

Judges, and says it; the looking and measuring is done above it, in `campaign.doctor`.
"""
