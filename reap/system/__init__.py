"""Services of the operating system: memory, locks, forks, interrupts, room on disks."""
