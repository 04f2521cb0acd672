"""Looking at a recording: the page, and the picture in a terminal."""
