"""A store on another machine, with the interface of one on this machine: `di_store.connect`."""
