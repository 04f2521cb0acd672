from .display import show as show
from .page import write_page as write_page
from .server import serve as serve
from .terminal import attention_table as attention_table
