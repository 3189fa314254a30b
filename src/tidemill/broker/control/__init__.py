"""Control of the timer: which runner takes its steps, its process, its repair, and simulated time."""
