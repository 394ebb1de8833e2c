def sections(cells):
    return []
def paper_rows(cells):
    return []
