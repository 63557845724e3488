"""Parts of Grafana dashboards: panels, variables, and where panels lie.

Plain dictionaries in, plain dictionaries out. make_dashboards puts them
together; what the boards show stands there.
"""

SCHEMA_VERSION = 39  # Grafana 10.3 and later; older ones have not been tried.
GRID_WIDTH = 24
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

# For latencies that grow from good to bad, and ratios that fall.
GREEN, YELLOW, RED, BLUE = "green", "yellow", "red", "blue"


def target(expr, legend="", instant=False, fmt="time_series"):
    """One query; `legend` is text with {{label}} in it."""
    query = {
        "datasource": DATASOURCE,
        "editorMode": "code",
        "expr": " ".join(expr.split()),
        "format": fmt,
        "instant": instant,
        "range": not instant,
        "legendFormat": legend or "__auto",
    }
    return query


def thresholds(*steps):
    """thresholds("green", (0.9, "red")): colours from the values on."""
    made = [{"color": steps[0], "value": None}]
    made += [{"color": color, "value": value} for value, color in steps[1:]]
    return {"mode": "absolute", "steps": made}


def panel(kind, title, description, targets, width, height, unit, options,
          custom=None, steps=None, decimals=None, low=None, high=None):
    for index, one in enumerate(targets):
        one["refId"] = chr(ord("A") + index)
    defaults = {
        "color": {"mode": "palette-classic"},
        "custom": custom or {},
        "mappings": [],
        "thresholds": steps or thresholds(GREEN),
        "unit": unit,
    }
    for name, value in (("decimals", decimals), ("min", low), ("max", high)):
        if value is not None:
            defaults[name] = value
    return {
        "type": kind,
        "title": title,
        "description": " ".join(description.split()),
        "datasource": DATASOURCE,
        "targets": targets,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "gridPos": {"w": width, "h": height},
    }


def lines(title, description, targets, width=8, height=8, unit="short",
          stacked=False, low=0, high=None, decimals=None):
    """Lines over time; `stacked` ones are areas that add up."""
    custom = {
        "axisBorderShow": False,
        "axisPlacement": "auto",
        "drawStyle": "line",
        "fillOpacity": 60 if stacked else 8,
        "gradientMode": "none",
        "lineInterpolation": "linear",
        "lineWidth": 1,
        "pointSize": 4,
        "scaleDistribution": {"type": "linear"},
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"group": "A", "mode": "normal" if stacked else "none"},
        "thresholdsStyle": {"mode": "off"},
    }
    options = {
        "legend": {"calcs": ["mean", "lastNotNull"], "displayMode": "table",
                   "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return panel("timeseries", title, description, targets, width, height, unit,
                 options, custom, low=low, high=high, decimals=decimals)


def stat(title, description, expr, width=3, unit="short", steps=None,
         decimals=None):
    """One number of now, with its course behind it."""
    options = {
        "colorMode": "value",
        "graphMode": "area",
        "justifyMode": "auto",
        "orientation": "auto",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "",
                          "values": False},
        "textMode": "value",
    }
    made = panel("stat", title, description, [target(expr, title)], width, 4,
                 unit, options, steps=steps or thresholds(BLUE),
                 decimals=decimals)
    made["fieldConfig"]["defaults"]["color"] = {"mode": "thresholds"}
    return made


def heatmap(title, description, expr, width=8, height=8, unit="s"):
    """Buckets of a histogram over time; `expr` sums them by le."""
    options = {
        "calculate": False,
        "cellGap": 1,
        "cellValues": {"unit": "short"},
        "color": {"exponent": 0.5, "fill": "dark-orange", "mode": "scheme",
                  "reverse": False, "scale": "exponential",
                  "scheme": "Oranges", "steps": 64},
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "showValue": "never",
        "tooltip": {"mode": "single", "showColorScale": False,
                    "yHistogram": False},
        "yAxis": {"axisPlacement": "left", "reverse": False, "unit": unit},
    }
    custom = {"hideFrom": {"legend": False, "tooltip": False, "viz": False},
              "scaleDistribution": {"type": "linear"}}
    return panel("heatmap", title, description,
                 [target(expr, "{{le}}", fmt="heatmap")], width, height, "short",
                 options, custom)


def table_custom(cell):
    return {"align": "auto", "cellOptions": cell, "filterable": False,
            "inspect": False}


def matrix(title, description, expr, row, column, width=12, height=8,
           unit="short", scheme="continuous-RdYlGr"):
    """Rows and columns are labels, cells the values of now."""
    made = panel(
        "table", title, description,
        [target(expr, instant=True, fmt="table")], width, height, unit,
        {"cellHeight": "sm", "showHeader": True},
        table_custom({"type": "color-background", "mode": "gradient"}))
    made["fieldConfig"]["defaults"]["color"] = {"mode": scheme}
    # The first column holds names, not values.
    made["fieldConfig"]["overrides"] = [{
        "matcher": {"id": "byName", "options": f"{row}\\{column}"},
        "properties": [
            {"id": "custom.cellOptions", "value": {"type": "auto"}}],
    }]
    made["transformations"] = [{
        "id": "groupingToMatrix",
        "options": {"columnField": column, "rowField": row,
                    "valueField": "Value"},
    }]
    return made


def table(title, description, columns, names, sort, width=24, height=8):
    """A row for each set of the labels `names`, by that called `sort`; columns
    are (title, expr, unit), and each expr has these labels and no others."""
    targets = [target(expr, instant=True, fmt="table")
               for _, expr, _ in columns]
    made = panel("table", title, description, targets, width, height, "short",
                 {"cellHeight": "sm", "showHeader": True,
                  "sortBy": [{"desc": False, "displayName": sort}]},
                 table_custom({"type": "auto"}))
    order = {name: index for index, name in enumerate(names)}
    renamed = {}
    for index, (column, _, unit) in enumerate(columns):
        field = f"Value #{chr(ord('A') + index)}"
        renamed[field] = column
        order[field] = len(order)
        made["fieldConfig"]["overrides"].append({
            "matcher": {"id": "byName", "options": column},
            "properties": [{"id": "unit", "value": unit}],
        })
    made["transformations"] = [
        {"id": "merge", "options": {}},
        {"id": "organize", "options": {
            "excludeByName": {"Time": True}, "indexByName": order,
            "renameByName": renamed}},
    ]
    return made


def row(title, *panels):
    return {"title": title, "panels": list(panels)}


def lay_out(rows):
    """Panels of rows one beside the other, as far as they have room, with ids."""
    placed, y, ident = [], 0, 1
    for one in rows:
        placed.append({
            "type": "row", "title": one["title"], "collapsed": False,
            "panels": [], "id": ident,
            "gridPos": {"x": 0, "y": y, "w": GRID_WIDTH, "h": 1},
        })
        y, ident = y + 1, ident + 1
        x = line_height = 0
        for each in one["panels"]:
            size = each["gridPos"]
            if x + size["w"] > GRID_WIDTH:
                x, y, line_height = 0, y + line_height, 0
            each["gridPos"] = {"x": x, "y": y, "w": size["w"], "h": size["h"]}
            each["id"] = ident
            placed.append(each)
            x, ident = x + size["w"], ident + 1
            line_height = max(line_height, size["h"])
        y += line_height
    return placed


def data_source_variable():
    return {
        "name": "datasource", "label": "Data source", "type": "datasource",
        "query": "prometheus", "refresh": 1, "hide": 0, "multi": False,
        "includeAll": False, "options": [], "regex": "", "skipUrlSync": False,
        "current": {"selected": False, "text": "default", "value": "default"},
    }


def label_variable(name, label, query):
    """Values of a label. `All` also means: without that label."""
    return {
        "name": name, "label": label, "type": "query",
        "datasource": DATASOURCE,
        "query": {"qryType": 1, "query": query, "refId": name},
        "refresh": 2, "hide": 0, "sort": 1, "multi": True, "includeAll": True,
        "allValue": ".*", "options": [], "regex": "", "skipUrlSync": False,
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def dashboard(uid, title, description, variables, rows):
    return {
        "uid": uid,
        "title": title,
        "description": " ".join(description.split()),
        "tags": ["baton"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "fiscalYearStartMonth": 0,
        "liveNow": False,
        "weekStart": "",
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timepicker": {},
        "timezone": "browser",
        "annotations": {"list": [{
            "name": "Alerts", "type": "dashboard", "enable": True,
            "hide": False, "iconColor": RED, "datasource": DATASOURCE,
            "expr": 'ALERTS{alertname=~"Baton.*",alertstate="firing"}',
            "step": "60s", "titleFormat": "{{alertname}}",
            "textFormat": "{{worker}} {{peer}}",
        }]},
        "links": [{
            "asDropdown": False, "icon": "external link", "includeVars": True,
            "keepTime": True, "tags": ["baton"], "targetBlank": False,
            "title": "Baton", "tooltip": "", "type": "dashboards", "url": "",
        }],
        "templating": {"list": variables},
        "panels": lay_out(rows),
    }
