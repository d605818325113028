"""Which block leaves first when there is no room, one file each. See `kvpager.store.eviction.base`."""
