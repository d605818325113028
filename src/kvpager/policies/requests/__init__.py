"""Request-level policies, one file each: what a cache of blocks keeps between requests. See `kvpager.policies.requests.base`.

They share names and papers with the step-level policies of `kvpager.policies`, and nothing else (ADR 2).
"""
