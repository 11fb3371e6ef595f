"""The lessons as a course: a teacher's copy to grade with nbgrader, a student's copy without solutions, slides.

    write_teacher(project, Path("teacher"))      # an nbgrader course: source/, release/, gradebook.db
    write_student(project, Path("student"))      # the same notebooks with stubs

nbgrader takes the solutions out and grades; this room puts them in, and knows what an exercise is.
"""

from .copies import write_student, write_teacher
from .exercises import CodeExercise, code_exercises, course_lessons, grade_, solved

__all__ = ["CodeExercise", "code_exercises", "course_lessons", "grade_", "solved", "write_student", "write_teacher"]
