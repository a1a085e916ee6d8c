"""Workers in Ray actors, one each; see `reap.workers.ray.carrier`."""
