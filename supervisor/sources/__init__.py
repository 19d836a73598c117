"""The world as readings: files, sensors, tools and the kernel log; nothing here judges or acts."""
