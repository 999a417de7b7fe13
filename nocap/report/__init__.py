"""Results as tables and pages: a page is one HTML file with its style, scripts and data, and no
network.

The page of a comparison (`pages/comparison.html.j2`), from top to bottom:

    comparison_page        all that the template names; the clock and the forest plots' rows
    headline               what was found, in sentences, and what to type next
    provenance             the line of dates, versions, machines, data and code
    comparison_tables      the tables: by factor, verdicts, target, speed, costs
    forest                 the forest plots beside the first two tables
    comparison_charts      the loss over steps and over time, and the data of both charts
    verdict_marks          the mark of each word, and what it means

Templates of other pages: `pages/race.html.j2` for `nocap.sources.races.result_page`, and
`pages/board.html.j2` for `nocap.study.board_pages`. `pages/page.html.j2` frames every page, and
`pages/macros.html.j2` draws tables, pictures and marks.

What several pages and tables draw with:

    html_page              fill a template as one file, whose scripts are named by hash
    table                  a table and its columns: as text, Markdown and HTML
    figures_in_words       figures in words: `7.4% faster`
    axis                   an axis with round ticks
    svg_chart              a chart as SVG, for where no script runs
    arm_styles             a colour, a dash and a mark for each arm
    short_names            names of arms that fit
    terminal               tables and prose in a terminal
    terminal_curves        curves in a terminal, for `nocap.plot`

A comparison elsewhere than on its page:

    comparison_markdown    as Markdown
    result_file            as a file that can be judged again
    flat_rows              as rows: of runs for CSV and notebooks, of arms for trackers

    run_differences        what makes two runs differ, for `nocap.runs why`
"""
