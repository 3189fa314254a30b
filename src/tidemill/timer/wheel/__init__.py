"""The default timer store: TimerLog and TimerWheel."""
