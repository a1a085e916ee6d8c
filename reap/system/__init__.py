"""What the operating system gives: memory, locks, forks, interrupts."""
