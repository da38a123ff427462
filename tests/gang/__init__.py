"""`supervise gang`: places, records, and the launcher with a stand-in for Ray and with Ray."""
