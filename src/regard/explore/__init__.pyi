from .display import show as show
from .html_page import write_html as write_html
from .server import serve as serve
from .terminal import attention_table as attention_table
