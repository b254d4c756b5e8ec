"""Services: state machines that the total order feeds."""
