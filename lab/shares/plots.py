def draw(*a): return []
def full(*a): return ""
