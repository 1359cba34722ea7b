"""The Data Science service: jobs, job runs, projects."""
