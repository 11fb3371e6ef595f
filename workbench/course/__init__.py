"""The lessons as a course: a teacher's copy to grade with nbgrader, a student's copy without solutions, slides.

    write_course(project, teacher=Path("teacher"), student=Path("student"))

nbgrader takes the solutions out and grades; this room puts them in, and knows what an exercise is.
"""

from .copies import write_course
from .exercises import CodeExercise, code_exercises, course_lessons, grade_, solved

__all__ = ["CodeExercise", "code_exercises", "course_lessons", "grade_", "solved", "write_course"]
