"""Rows of MEASURED items on real ranks: overhead, recovery, tiers, and reliability under drawn failure schedules."""
